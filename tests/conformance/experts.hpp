// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tokens to experts and back over every backend, at once and in the order of streams: what the ranks compute has the
// bits of threads that write into each other's memory.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "conformance/reference.hpp"
#include "unit/parallel/support/expert_fixture.hpp"
#include "unit/parallel/support/toy_experts.hpp"

namespace conformance {

struct expert_job {
  std::size_t experts = 12;  // divided by 1, 2, 3 and 4
  std::size_t hidden = 17;
  std::size_t k = 2;
  std::size_t capacity = 200;
  std::vector<std::size_t> rows;  // of each rank
  belay::stream_policy streams = belay::stream_policy::immediate;
};

// Two layers' forwards, then their backwards, twice: everything this rank computed, one after the other.
inline std::vector<float> train_experts(const belay::group& ranks, const expert_job& what) {
  const auto me = static_cast<std::size_t>(ranks.rank());
  const std::size_t mine = what.rows[me];
  const std::size_t first = std::accumulate(what.rows.begin(), what.rows.begin() + ranks.rank(), std::size_t{0});
  const std::size_t all = std::accumulate(what.rows.begin(), what.rows.end(), std::size_t{0});
  const auto x = toy::some_numbers<float>(all * what.hidden, 5);
  const auto dy = toy::some_numbers<float>(all * what.hidden, 6);
  // What the stream uses outlives it.
  toy::parameters<float> weights(what.experts, what.hidden, 11), other(what.experts, what.hidden, 12);
  toy::expert_fixture<float> here(ranks, {what.experts, what.k, what.hidden, what.capacity}, {what.streams});
  here.exchange.prepare(0, 2, 1);
  std::vector<float> out;
  for (int step = 0; step < 2; ++step) {
    here.exchange.begin_step();
    using layer = toy::layer<float, toy::exchange_type<float>>;
    layer lower{weights, here.exchange, what.k, 0.25F}, upper{other, here.exchange, what.k, 0.25F};
    std::vector<float> dx(mine * what.hidden), dh(mine * what.hidden);
    {
      auto frame = here.begin(belay::frame_mode::owing);
      const float* const rows = x.data() + first * what.hidden;
      auto below = lower.forward(frame, {rows, {mine, what.hidden}});
      const belay::view<const float, 2> between{below.out.data(), {mine, what.hidden}};
      auto above = upper.forward(frame, between);
      const auto result = above.out;
      upper.backward(frame, std::move(above), {dy.data() + first * what.hidden, {mine, what.hidden}},
                     toy::matrix(dh, mine, what.hidden), between.data());
      const auto gradient = toy::matrix(dx, mine, what.hidden);
      lower.backward(frame, std::move(below), {dh.data(), {mine, what.hidden}}, gradient, rows);
      here.engine.compute().synchronize();
      out.insert(out.end(), result.data(), result.data() + result.size());
    }
    here.end();
    out.insert(out.end(), dx.begin(), dx.end());
    out.push_back(static_cast<float>(here.exchange.take_overflow().needed));
    out.push_back(static_cast<float>(here.leases() + here.meter.live_bytes()));  // 0
  }
  for (const auto* part : {&weights.matrices_gradient, &weights.router_gradient, &other.matrices_gradient}) {
    out.insert(out.end(), part->begin(), part->end());
  }
  return out;
}

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("tokens visit experts and come back with the bits of threads, with room and without", Backend,
                          conf_experts) {
  using namespace conformance;
  for (const std::vector<std::size_t>& rows :
       {std::vector<std::size_t>{9}, {5, 4}, {0, 9}, {40, 1, 7}, {20, 30, 0, 40}}) {
    for (std::size_t capacity : {std::size_t{200}, std::size_t{6}}) {  // the second one is too small
      CAPTURE(rows.size());
      CAPTURE(capacity);
      expert_job what{.capacity = capacity, .rows = rows};
      const auto ranks = static_cast<int>(rows.size());
      const auto expected =
          belay::host::world{ranks}.run([&](belay::host::rank& rank) { return train_experts(rank.world(), what); });
      for (const belay::stream_policy streams : {belay::stream_policy::immediate, belay::stream_policy::queued}) {
        CAPTURE(name(streams));
        what.streams = streams;
        CHECK(all(Backend::run(ranks, [&](auto& rank) {
          const auto got = train_experts(rank.world(), what);
          return same_bits(got, expected[static_cast<std::size_t>(rank.number())]);
        })));
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("with queued streams a host goes on from each move, whether or not its peers have come",
                          Backend, conf_experts_host) {
  using namespace conformance;
  CHECK(all(Backend::run(2, [&](auto& rank) {
    const belay::group ranks = rank.world();
    const int me = ranks.rank();
    constexpr std::size_t rows = 6, hidden = 4, experts = 4;
    toy::expert_fixture<float> here(ranks, {experts, 1, hidden, 12}, {belay::stream_policy::queued});
    const auto x = toy::some_numbers<float>(rows * hidden, 1 + static_cast<std::size_t>(me));
    const belay::view<const float, 2> input{x.data(), {rows, hidden}};
    std::vector<float> logits(rows * experts), y, dweights, dx;
    for (std::size_t row = 0; row < rows; ++row) logits[row * experts + row % experts] = 5;
    auto frame = here.begin(belay::frame_mode::owing);
    const auto routed = belay::route<float>(frame, toy::matrix(logits, rows, experts), 1);
    // Before each move the second rank waits for a word that the first one's host sends after it.
    int word = 0;
    const auto wait_for_the_first = [&] {
      const belay::p2p received = belay::p2p::receive(0, std::span<int>(&word, 1));
      if (me == 1) ranks.exchange(std::span(&received, 1));
    };
    const auto let_the_second_go = [&] {
      const belay::p2p sent = belay::p2p::send(1, std::span<const int>(&word, 1));
      if (me == 0) ++word, ranks.exchange(std::span(&sent, 1));
    };
    wait_for_the_first();
    auto there = here.exchange.dispatch(frame, input, routed);
    let_the_second_go();
    frame.run([in = there.rows(), out = there.outputs(), ends = there.offsets()] {
      for (std::size_t i = 0; i < ends.back() * hidden; ++i) out.data()[i] = 2 * in.data()[i];
    });
    wait_for_the_first();
    auto merged = std::move(there).combine(frame, toy::matrix(y, rows, hidden));
    let_the_second_go();
    wait_for_the_first();
    auto back = std::move(merged).backward(frame, input, toy::matrix(dweights, rows, 1));
    let_the_second_go();
    frame.run([in = back.output_gradients(), out = back.row_gradients(), ends = back.offsets()] {
      for (std::size_t i = 0; i < ends.back() * hidden; ++i) out.data()[i] = 2 * in.data()[i];
    });
    wait_for_the_first();
    std::move(back).finish(frame, toy::matrix(dx, rows, hidden));
    let_the_second_go();
    here.engine.compute().synchronize();
    bool ok = word == 4;
    for (std::size_t i = 0; i < rows * hidden; ++i) ok = ok && y[i] == 2 * x[i] && dx[i] == 2 * x[i];
    here.end();
    return ok && here.leases() == 0 && !here.exchange.take_overflow().happened();
  })));
}
