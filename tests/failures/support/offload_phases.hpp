// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Phases of training and rollout on any world, whose parameters, gradients and state are offloaded: what every tier has
// after each cycle, and what a transition reports.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "belay/comm/mesh.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/checkpoint.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/phase_switch.hpp"
#include "belay/train/store.hpp"
#include "failures/support/batches.hpp"
#include "unit/train/support/directory.hpp"

namespace offload_phases {

using namespace failures;
using belay::phase;
using belay::tier;

using live_bytes = std::array<std::size_t, belay::tier_count>;

// What leaving the training phase takes beside the store's arenas.
struct no_buffers {
  void take(std::size_t) const noexcept {}
  [[nodiscard]] static std::size_t bytes() noexcept { return 0; }
};
// The wrong one: a buffer for every offload, rounded up, which its cache keeps.
struct cached_buffers {
  std::vector<std::vector<std::byte>> kept;
  void take(std::size_t wanted) { kept.emplace_back(std::bit_ceil(wanted), std::byte{1}); }
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t all = 0;
    for (const auto& each : kept) all += each.size();
    return all;
  }
};

struct found {
  std::size_t pinned_first = 0, pinned_last = 0;  // after a cycle
  std::size_t shards = 0;                         // bytes of this rank's shards, as arenas round them
  std::size_t ring = 0;                           // and of what streams between them and the device, in the same tier
  std::size_t squares = 0;                        // and of what a device tells of gradients
  std::size_t in_device = 0;                      // planned bytes of parameters, gradients and state there
  std::size_t other_cycles = 0;                   // that left a tier otherwise than the first
  std::ptrdiff_t grown = 0;                       // what transitions reported
  std::size_t resident_growth = 0;
  bool as_planned = true;
  bool exact = true;            // shards are as large as values, gradients and moments are
  std::uint64_t committed = 0;  // checkpoints
};

live_bytes live_of(const auto& run) {
  live_bytes out{};
  for (std::size_t t = 0; t < out.size(); ++t) out[t] = run.meters()[static_cast<tier>(t)].live_bytes();
  return out;
}

// One step; false where it comes again. (Handles live in a function without a loop, which Clang follows.)
bool train_once(auto& run, auto& mesh, auto& store, auto& saved, auto& first, auto& second, auto& optimizer,
                const batches& batch) {
  belay::step step{run.engine(), store, saved};
  step.micro_batches(1);
  auto h = belay::forward(step.micro_batch(0), first, belay::constant(batch.inputs()));
  auto y = belay::forward(step.micro_batch(0), second, h.out());
  auto [loss, grad] = belay::squared_error(step.micro_batch(0), matrix(y.out()), batch.targets());
  grad = std::move(y).backward(grad);
  std::move(h).backward(grad);
  auto outcome = std::move(step).commit(mesh, belay::samples{rows});
  auto* const ok = belay::committed(outcome);
  if (ok != nullptr) optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
  return ok != nullptr;
}

// `cycles` of a training step, a rollout, and back. Parameters, gradients and state are offloaded: a step and a rollout
// load what they use. Half way a checkpoint is written.
template <class Buffers, class Launch>
found run_cycles(const Launch& launch, std::size_t cycles) {
  found out;
  const train_bench::directory folder;
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    two_layers net(9);
    belay::parameter_store store{run, mesh, net, belay::zero<3>{},
                                 belay::store_options{.parameters = tier::pinned, .gradients = tier::pinned}};
    belay::gathers first{net.first, store}, second{net.last, store};
    belay::adamw optimizer{store, {}, {.state = tier::pinned}};
    belay::checkpoints saved{run, mesh, {.folder = folder.path, .every = cycles / 2}};
    saved.add(store, optimizer);
    static_cast<void>(saved.open());
    belay::phase_switch phases{run, mesh, store};
    Buffers buffers;
    const std::size_t owned = store.owned_elements(run.rehearsing() ? 0 : rank.number());
    phases.on_leave(phase::train, "buffers", tier::pinned, [&] {
      buffers.take(owned * sizeof(float) + 1);
      return std::size_t{0};
    });
    auto training = phases.begin();
    const batches batch(run, 1);
    live_bytes live{};
    std::size_t resident = 0;
    const bool speaks = !run.rehearsing() && rank.number() == 0;
    for (auto number : run.steps(cycles)) {
      if (!train_once(run, mesh, store, saved, first, second, optimizer, batch)) continue;
      auto rolling = phases.to_rollout(std::move(training));
      {
        belay::forward_only pass{run.engine(), store};
        auto h = belay::observe(pass, first, batch.inputs());
        static_cast<void>(belay::observe(pass, second, h.out()));
      }
      training = phases.to_train(std::move(rolling));
      static_cast<void>(saved.after(number));
      if (!speaks) continue;
      for (const std::ptrdiff_t each : phases.last().grown) out.grown += each;
      const live_bytes now = live_of(run);
      const std::size_t pinned = now[static_cast<std::size_t>(tier::pinned)] + buffers.bytes();
      if (number == 1) live = now, out.pinned_first = pinned;
      out.pinned_last = pinned;
      out.other_cycles += now == live ? 0 : 1;
      // Before the checkpoint, and after it: its own ring is touched when it is written.
      if (number == cycles / 10 || number == cycles / 2 + cycles / 10) resident = belay::resident_memory();
      if (number == cycles / 2 - 1 || number == cycles - 1)
        out.resident_growth =
            std::max(out.resident_growth, belay::resident_memory() - std::min(resident, belay::resident_memory()));
    }
    saved.close();
    if (!speaks) return;
    for (const auto& item : run.planned().items()) {
      const bool of_shards =
          item.purpose == "parameters" || item.purpose == "gradients" || item.purpose == "optimizer state";
      if (of_shards && item.where_it_is == tier::pinned) out.shards += item.bytes;
      if (of_shards && item.where_it_is == tier::device) out.in_device += item.bytes;
      if (item.purpose == "optimizer ring" && item.where_it_is == tier::pinned) out.ring += item.bytes;
      if (item.purpose == "squares of gradients" && item.where_it_is == tier::pinned) out.squares += item.bytes;
    }
    // Values, gradients and moments of what this rank owns; each parameter's begin at a cache line.
    std::size_t exact = belay::leased_size(2 * owned * sizeof(float));
    for (const auto& range : store.buckets().owned()) exact += 2 * belay::leased_size(range.count * sizeof(float));
    out.exact = out.shards == exact;
    for (std::size_t t = 0; t < belay::tier_count; ++t)
      out.as_planned = out.as_planned && run.planned().peak_bytes(static_cast<tier>(t)) ==
                                             run.meters()[static_cast<tier>(t)].peak_bytes();
    out.committed = belay::checkpoint_folder<>(folder.path).committed().size();
  };
  launch(body);
  return out;
}

// What `expect(condition)` is told: a cache that a rollout keeps is a named, signed difference in the report.
template <class Launch, class Expect>
void forget_a_cache(const Launch& launch, const Expect& expect) {
  launch([&expect](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    two_layers net(9);
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}, belay::store_options{.parameters = tier::pinned}};
    belay::gathers first{net.first, store}, second{net.last, store};
    belay::adamw optimizer{store, {}, {.state = tier::pinned}};
    belay::phase_switch phases{run, mesh, store};
    std::optional<belay::whole_parameter<float>> cache;  // of a generation engine
    std::size_t given_back = 0;
    phases.on_leave(phase::rollout, "cache of the rollout", tier::device, [&] { return std::exchange(given_back, 0); });
    auto training = phases.begin();
    const auto rollout = [&](auto&& use) {
      auto rolling = phases.to_rollout(std::move(training));
      use();
      training = phases.to_train(std::move(rolling));
      return phases.last();
    };
    const auto device = static_cast<std::size_t>(tier::device), pinned = static_cast<std::size_t>(tier::pinned);
    static_cast<void>(rollout([] {}));
    const belay::transition forgot = rollout([&] { cache.emplace(store.read(net.first.weight)); });
    const auto bytes = static_cast<std::ptrdiff_t>(width * 9 * sizeof(float));
    expect(forgot.grown[device] >= bytes);
    expect(forgot.grown[pinned] == 0);
    expect(forgot.given_back.size() == 2);
    expect(forgot.given_back[1].what == "cache of the rollout");
    expect(forgot.given_back[1].bytes == 0);
    const std::ptrdiff_t kept = forgot.grown[device];
    const belay::transition drained = rollout([&] {
      cache.reset();
      given_back = static_cast<std::size_t>(kept);
    });
    expect(drained.grown[device] == -kept);
    expect(drained.given_back[1].bytes == static_cast<std::size_t>(kept));
    expect(rollout([] {}).grown[device] == 0);
  });
}

}  // namespace offload_phases
