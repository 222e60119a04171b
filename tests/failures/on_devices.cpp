// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Failures from the field on devices: on one that ranks share, and on one a rank over NCCL, both of the host and late
// on purpose. What is named on the host is named there, and nothing stays on a device.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/core/ledger.hpp"
#include "belay/train/launch.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/cuda/turned_ranks.hpp"
#include "fakes/cuda/turns.hpp"
#include "fakes/nccl/fake_nccl.hpp"
#include "unit/train/support/device_trainer.hpp"

using namespace device_trainer;
using fakes::work_order;

namespace {

enum class slip : std::uint8_t { none, forgotten_backward, other_seed, throws_in_a_step };

struct descent {
  float* value;
  const float* gradient;
  BELAY_HD void operator()(std::size_t i) const { value[i] -= 0.1F * gradient[i]; }
};

struct seen {
  std::vector<double> losses;
  std::size_t open = 0;  // obligations of a step that was refused
};

auto body(seen& out, slip what) {
  return [&out, what](auto& rank, auto& run) {
    using run_type = std::remove_reference_t<decltype(run)>;
    const bool odd = rank.number() == 1 && !run.rehearsing();
    belay::mesh mesh{rank, {.data = rank.size()}};
    network<float> net(9);
    belay::parameter_store<run_type, decltype(mesh), belay::precision<float>> store{
        run,
        mesh,
        net,
        what == slip::other_seed ? belay::zero_stage::none : belay::zero_stage::parameters,
        {.seed = odd && what == slip::other_seed ? 4U : 3U, .bucket_bytes = 128}};
    belay::gathers first{net.first, store}, last{net.last, store};
    const auto memory = run.template lease<float>(belay::tier::device, 2 * rows * width, "batches");
    const auto micro_batch = [&](const auto& scope, std::size_t number) {
      if (odd && what == slip::throws_in_a_step && number > 10) throw std::runtime_error("out of data");
      float* const x = memory.data();
      run.engine().kit().each(2 * rows * width, batch_of{x, number + static_cast<std::size_t>(rank.number())});
      auto h = belay::forward(scope, first, belay::constant(matrix{x, {rows, width}}));
      auto y = belay::forward(scope, last, h.out());
      auto [loss, grad] = belay::squared_error(scope, matrix(y.out()), matrix{x + rows * width, {rows, width}});
      if (what == slip::forgotten_backward && !run.rehearsing() && number % 2 == 1) {
        belay::handle_store<decltype(h)> lost_h{1};
        belay::handle_store<decltype(y)> lost_y{1};
        lost_h.keep(0, std::move(h));
        lost_y.keep(0, std::move(y));
        return;
      }
      std::move(h).backward(std::move(y).backward(grad));
    };
    for (const auto number : run.steps(steps)) {
      belay::step step{run.engine(), store};
      step.micro_batches(2);
      for (std::size_t m = 0; m < 2; ++m) micro_batch(step.micro_batch(m), 6 * number + m);
      auto outcome = std::move(step).commit(mesh, belay::samples{2 * rows * static_cast<std::size_t>(rank.size())});
      if (const auto* const no = belay::refused(outcome); no != nullptr && rank.number() == 0)
        out.open = no->findings.open_obligations;
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) { out.losses.push_back(end.mean_loss()); });
      auto part = std::move(*ok).only_part();
      for (const auto& range : part.owned()) run.engine().kit().each(range.count, descent{range.value, range.gradient});
      part.discard();  // they are used up
      store.buckets().finish_gathers_in(run.engine().kit().stream());
    }
  };
}

// Its ranks take turns from the seed of `how`.
struct one_device {
  static seen train(int ranks, slip what, fakes::device_options how, std::string* thrown = nullptr) {
    fakes::turns turns(how.seed);
    how.turns = &turns;
    fakes::device_api api(how);
    seen out;
    try {
      belay::launch(belay::cuda::world(api, fakes::in_turns(turns, belay::host::world(ranks)), {.slot_bytes = 512}),
                    body(out, what));
    } catch (const std::exception& problem) {
      if (thrown == nullptr) throw;
      *thrown = problem.what();
    }
    CHECK(api.empty());
    return out;
  }
};
struct device_each {
  static seen train(int ranks, slip what, fakes::device_options how, std::string* thrown = nullptr) {
    how.devices = ranks;
    fakes::device_api api(how);
    fakes::nccl_fabric fabric(api);
    seen out;
    try {
      belay::launch(belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::world(ranks),
                                       {.ranks = {.workspace_bytes = 192}, .parent_bytes = 1 << 16}),
                    body(out, what));
    } catch (const std::exception& problem) {
      if (thrown == nullptr) throw;
      *thrown = problem.what();
    }
    CHECK(fabric.refusals().empty());
    CHECK((fabric.empty() && api.empty()));
    return out;
  }
};

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE_TEMPLATE("a backward that is forgotten is named, or its step is refused", World, one_device, device_each) {
  std::string thrown;
  CHECK(World::train(2, slip::none, {work_order::late}).losses.size() == steps);
  const seen got = World::train(2, slip::forgotten_backward, {work_order::late}, &thrown);
  CHECK(got.losses.empty());
  if constexpr (belay::checked(belay::check_level::local))
    CHECK(has(thrown, "backward was never called"));
  else
    CHECK((thrown.empty() && got.open > 0));
}
TEST_CASE_TEMPLATE("replicas that begin with other values are named", World, one_device, device_each) {
  std::string thrown;
  CHECK(World::train(3, slip::other_seed, {work_order::random, 2}, &thrown).losses.empty());
  CHECK(has(thrown, "begin with different values of parameter"));
}
TEST_CASE_TEMPLATE("a rank that throws in a step ends the run with what it threw", World, one_device, device_each) {
  for (const work_order order : {work_order::eager, work_order::late}) {
    std::string thrown;
    CHECK(World::train(3, slip::throws_in_a_step, {order}, &thrown).losses.size() == 1);
    CHECK(thrown == "out of data");
  }
}
