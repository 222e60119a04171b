// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whatever the policy of the streams, training gives the same bits; and a program that forgets one event does not.
#include <doctest/doctest.h>

#include <concepts>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "laws/support/run.hpp"
#include "unit/train/support/network.hpp"
#include "test_length.hpp"

using namespace laws;
using belay::stream_choice;
using belay::stream_policy;

namespace {

enum class grid { sample, full };

// Each mesh once, and over all of them each pair of a schedule, a recompute and a ZeRO stage; or each mesh with all of
// these.
std::vector<options> runs_of(grid which) {
  std::vector<options> out;
  std::size_t number = 0;
  for (int pp : {1, 2, 4}) {
    for (int ep : {1, 2, 4}) {
      for (int dp : {1, 2, 3}) {
        if (pp * ep * dp > 8) continue;
        const auto add = [&](std::size_t schedule, std::size_t recompute, std::size_t zero) {
          options run = small_run();
          run.mesh = {pp, dp, ep, 1};
          run.steps = 2;
          run.schedule = schedule % 2 == 0 ? schedule_kind::one_f_one_b : schedule_kind::gpipe;
          run.recompute = recompute % 2 == 0 ? recompute_kind::none : recompute_kind::full;
          run.zero = zero % 2 == 0 ? belay::zero_stage::optimizer_state : belay::zero_stage::none;
          out.push_back(run);
        };
        if (which == grid::sample) add(number, number / 2, number / 3);
        for (std::size_t i = 0; i < 8 && which == grid::full; ++i) add(i, i / 2, i / 4);
        ++number;
      }
    }
  }
  return out;
}

// Streams that forget one kind of order.
enum class forgotten { record, wait, findings };
template <forgotten What>
struct forgetful_stream : belay::host_stream {
  using host_stream::host_stream;
  template <std::invocable Work>
  void run(const Work& work) {
    copied_findings_ = std::same_as<Work, belay::copy_findings>;
    host_stream::run(work);
  }
  // Its clock goes on, as if it had not forgotten: memory is where it was planned.
  [[nodiscard]] belay::stream_event record() {
    const belay::stream_event mark = host_stream::record();
    const bool forgets = What == forgotten::record || (What == forgotten::findings && copied_findings_);
    return forgets ? belay::stream_event().at(mark.clock()) : mark;
  }
  void wait(const belay::stream_event& mark, belay::where at = belay::where::current()) {
    host_stream::wait(What == forgotten::wait ? belay::stream_event().at(mark.clock()) : mark, at);
  }

 private:
  bool copied_findings_ = false;
};

struct slip {
  std::string missing;
  belay::axes mesh;
};

// The first seed with which the slip changes bits, or ends the run with an error.
template <forgotten What>
std::optional<std::uint64_t> caught_by(const belay::axes& mesh) {
  options run = small_run();
  run.mesh = mesh;
  run.steps = 4;
  run.zero = belay::zero_stage::optimizer_state;
  const uneven_text source(run.model.vocab);
  const record expected = train<double>(run, source);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    run.streams = {stream_policy::adversarial, seed};
    try {
      const record got = train<double, belay::host_kit<model::products, forgetful_stream<What>>>(run, source);
      if (compare(expected, got).worst != 0) return seed;
    } catch (const std::exception&) {
      return seed;  // a number that is none, or a gradient that changed after its checksum
    }
  }
  return {};
}

// The same of a small network on two ranks, whose steps make no blocking call between an update and the next forward:
// such a call comes after all that was started.
template <forgotten What>
std::optional<std::uint64_t> caught_in_small_network() {
  using kit = belay::host_kit<belay::kernel::blocked_products, forgetful_stream<What>>;
  network_bench::trained expected;
  belay::launch(belay::host::world{2}, network_bench::training_body<1>(4, expected));
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    network_bench::trained got;
    try {
      belay::launch<kit>(belay::host::world{2}, network_bench::training_body<1>(4, got),
                         {.streams = {stream_policy::adversarial, seed}});
      if (got.losses != expected.losses || got.values != expected.values) return seed;
    } catch (const std::exception&) {
      return seed;
    }
  }
  return {};
}

void is_caught(const slip& one, const std::optional<std::uint64_t>& seed) {
  INFO("without the event before " << one.missing << ", on " << one.mesh.text());
  REQUIRE(seed);
  MESSAGE("without the event before " << one.missing << ": caught by seed " << *seed);
}

}  // namespace

TEST_CASE("queued and adversarial streams train as immediate ones do, to the bit") {
  std::uint64_t seed = 0;
  const auto train_alike = [&seed](options run, std::uint64_t seeds) {
    const uneven_text source(run.model.vocab);
    const record expected = train<double>(run, source);
    const auto same = [&](const stream_choice& how) {
      run.streams = how;
      const difference apart = compare(expected, train<double>(run, source));
      INFO(run.mesh.text() << ", " << name(how.policy) << ", seed " << how.seed << ": " << apart.where << " differs by "
                           << apart.worst);
      CHECK(apart.worst == 0);
    };
    same({stream_policy::queued, 0});
    for (std::uint64_t i = 0; i < seeds; ++i) same({stream_policy::adversarial, seed++});
  };
  std::size_t number = 0;
  for (const options& run : runs_of(grid::sample))
    if (!only_a_sample() || number++ % 3 == 2) train_alike(run, is_soak() ? 20 : 1);
  if (!is_soak()) return;
  for (const options& run : runs_of(grid::full)) train_alike(run, 1);
}

TEST_CASE("one seed is one order") {
  options run = small_run();
  run.mesh = {2, 1, 2, 1};
  run.steps = 1;
  run.streams = {stream_policy::adversarial, 11};
  const uneven_text source(run.model.vocab);
  CHECK(compare(train<double>(run, source), train<double>(run, source)).worst == 0);
}

TEST_CASE("wrong policies do not pass: an event is forgotten") {
  // What is poisoned may be an index, which a release build does not look at.
  if constexpr (!belay::checked(belay::check_level::local)) return;
  const belay::axes one{1, 1, 1, 1}, data{1, 2, 1, 1}, pipeline{2, 1, 1, 1}, expert{1, 1, 2, 1};
  is_caught({"a bucket's reduction", data}, caught_by<forgotten::record>(data));
  is_caught({"what an optimizer's gather has written is read", data}, caught_in_small_network<forgotten::wait>());
  is_caught({"a tensor is sent, or its memory is received into", pipeline}, caught_by<forgotten::record>(pipeline));
  is_caught({"a received tensor is used", pipeline}, caught_by<forgotten::wait>(pipeline));
  is_caught({"rows are given to an exchange", expert}, caught_by<forgotten::record>(expert));
  is_caught({"the rows of an exchange are read", expert}, caught_by<forgotten::wait>(expert));
  is_caught({"the findings of a step are read", one}, caught_by<forgotten::findings>(one));
}

TEST_CASE("a step that fails on one rank ends all of them with the first cause, whatever is queued") {
  for (const stream_choice& how :
       {stream_choice{stream_policy::queued, 0}, stream_choice{stream_policy::adversarial, 3}}) {
    options run = small_run();
    run.mesh = {2, 2, 1, 1};
    run.streams = how;
    const uneven_text source(run.model.vocab);
    const auto fail_on_three = [&] {
      launch(run, [&](auto& rank, auto& self) {
        trainer<double, std::remove_reference_t<decltype(rank)>, std::remove_reference_t<decltype(self)>> trained{
            run, rank, self, source};
        for (const std::size_t step : self.steps(3)) {
          if (!self.rehearsing() && rank.number() == 3 && step == 2) throw std::runtime_error("rank 3 has had enough");
          static_cast<void>(trained.train(step));
        }
      });
    };
    CHECK_THROWS_WITH_AS(fail_on_three(), "rank 3 has had enough", std::runtime_error);
  }
}
