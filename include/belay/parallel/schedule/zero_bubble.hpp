// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Schedules whose backwards are in two halves: what the stage before waits for runs at once, and weight gradients fill
// the time in which a rank would wait. With equal times of forward, input and weight gradient their bubble is a third
// of that of 1F1B or less. They were published as "Zero Bubble Pipeline Parallelism" (Qi et al., 2024), ZB-H1, ZB-H2
// and ZB-V; as a variant of the interleaved schedule in PyTorch; and as DualPipeV (DeepSeek, 2025), whose pairs of a
// forward and a backward are written one after the other, so that each hands on what it has at once, or as pairs.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/parallel/schedule/rules.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// Writes the computes of a rank, counting the micro-batches of each kind and chunk.
template <class Out>
class counted_computes {
 public:
  explicit constexpr counted_computes(Out& out) noexcept : out_(&out) {}

  constexpr void forward(std::size_t chunk = 0) { write(action_kind::forward, forwards_, chunk); }
  constexpr void input(std::size_t chunk = 0) { write(action_kind::input_gradient, inputs_, chunk); }
  constexpr void weight(std::size_t chunk = 0) { write(action_kind::weight_gradient, weights_, chunk); }
  /// Both halves at once. No weight gradient of the chunk may be owed.
  constexpr void backward(std::size_t chunk) {
    write(action_kind::backward, inputs_, chunk);
    ++weights_[chunk];
  }

  /// A forward beside a whole backward.
  constexpr void pair(std::size_t forward_chunk, std::size_t backward_chunk) {
    (*out_)(plan_forward_beside_next(forwards_[forward_chunk]++, forward_chunk));
    backward(backward_chunk);
  }

  [[nodiscard]] constexpr std::size_t forwards(std::size_t chunk = 0) const noexcept { return forwards_[chunk]; }
  /// Input gradients whose weight gradients are still owed.
  [[nodiscard]] constexpr std::size_t owed(std::size_t chunk = 0) const noexcept {
    return inputs_[chunk] - weights_[chunk];
  }

 private:
  using counts = std::array<std::size_t, 2>;

  constexpr void write(action_kind kind, counts& of, std::size_t chunk) {
    (*out_)(plan_compute(kind, of[chunk]++, chunk));
  }

  Out* out_;
  counts forwards_{};
  counts inputs_{};
  counts weights_{};
};

/// `Warm` times as many forwards as in 1F1B come first; a weight gradient follows each input gradient once rank 0 has
/// no time to fill.
template <std::size_t Warm>
struct zero_bubble_rule {
  static constexpr std::string_view name = Warm == 1 ? "zb-h1" : "zb-h2";

  template <class Out>
  constexpr void operator()(Out& out, rank_position at) const {
    const std::size_t ahead = (at.ranks - 1 - at.rank) * Warm;
    counted_computes computes(out);
    for (std::size_t i = 0; i < ahead && i < at.micro_batches; ++i) computes.forward();
    for (std::size_t i = 0; i < at.micro_batches; ++i) {
      if (computes.forwards() < at.micro_batches) computes.forward();
      computes.input();
      if (ahead + i >= (at.ranks - 1) * Warm) computes.weight();
    }
    while (computes.owed() > 0) computes.weight();
  }
};
/// As much is kept as in 1F1B by its first rank, a third of its bubble remains.
using zb_h1_rule = zero_bubble_rule<1>;
/// Twice as much is kept, and no rank waits between its first compute and its last.
using zb_h2_rule = zero_bubble_rule<2>;

/// The interleaved schedule with backwards in two halves. A rank's weight gradients begin when it has run as many input
/// gradients as there are ranks before it.
struct interleaved_zero_bubble_rule {
  static constexpr std::string_view name = "interleaved-zb";

  std::size_t chunks = 2;

  [[nodiscard]] constexpr placement placed() const { return {chunks, stage_in_loop}; }
  template <class Out>
  constexpr void operator()(Out& out, rank_position at) const {
    const interleaved_order order(at.ranks, at.micro_batches, chunks, 0);
    const std::size_t all = at.micro_batches * chunks;
    const std::size_t ahead = at.ranks - 1 - at.rank + (chunks - 1) * order.group();
    const std::size_t warm = ahead < all ? ahead : all;
    std::size_t weights = 0;
    for (std::size_t i = 0; i < warm; ++i) out(order.forward(i));
    for (std::size_t i = 0; i < all; ++i) {
      if (warm + i < all) out(order.forward(warm + i));
      out(order.backward(i, action_kind::input_gradient));
      if (i >= at.rank) out(order.backward(weights++, action_kind::weight_gradient));
    }
    while (weights < all) out(order.backward(weights++, action_kind::weight_gradient));
  }
};

/// Two chunks of each rank in a V: rank 0 has the first stage and the last. It keeps what 1F1B keeps.
struct zb_v_rule {
  static constexpr std::string_view name = "zb-v";

  [[nodiscard]] static constexpr placement placed() { return {2, stage_in_v}; }
  template <class Out>
  constexpr void operator()(Out& out, rank_position at) const {
    // With fewer micro-batches than fill the V, the rule is that of so many, without the rest.
    const std::size_t fill = 2 * at.ranks - 1;
    const std::size_t size = at.micro_batches < fill ? fill : at.micro_batches;
    const auto there = [&](const planned_compute& next) {
      if (next.micro_batch < at.micro_batches) out(next);
    };
    counted_computes computes(there);
    const auto input_and_weight = [&](std::size_t chunk) {
      computes.input(chunk);
      computes.weight(chunk);
    };
    for (std::size_t i = 0; i < 2 * (at.ranks - at.rank) - 1; ++i) computes.forward(0);
    for (std::size_t i = 0; i < at.rank; ++i) {
      computes.forward(1);
      computes.forward(0);
    }
    for (std::size_t i = at.rank; i < at.ranks; ++i) {
      computes.forward(1);
      input_and_weight(1);
    }
    while (computes.forwards(1) < computes.forwards(0) || computes.forwards(0) < size) {
      if (computes.forwards(0) < size) computes.forward(0);
      input_and_weight(0);
      computes.forward(1);
      input_and_weight(1);
    }
    for (std::size_t i = 0; i < at.rank; ++i) {
      computes.input(0);
      computes.input(1);
    }
    for (std::size_t i = at.rank; i < at.ranks; ++i) input_and_weight(0);
    while (computes.owed(1) > 0) computes.weight(1);
    while (computes.owed(0) > 0) computes.weight(0);
  }
};

/// How a forward and a backward that may run beside each other are written: apart, each handing on what it has at once,
/// or as a pair, which has both inputs when it begins and both outputs when it ends.
enum class pair_form : std::uint8_t { apart, atomic };

/// Two chunks of each rank in a V, the second of which is fed from the other end: forwards of one chunk run beside
/// backwards of the other.
template <pair_form Pairs>
struct dualpipe_v_form {
  static constexpr std::string_view name = Pairs == pair_form::apart ? "dualpipe-v" : "dualpipe-v:atomic";

  [[nodiscard]] static constexpr placement placed() { return {2, stage_in_v}; }
  [[nodiscard]] static constexpr std::size_t least_micro_batches(std::size_t ranks) { return 2 * ranks; }
  template <class Out>
  constexpr void operator()(Out& out, rank_position at) const {
    const std::size_t before = at.rank + 1, behind = at.ranks - before;
    counted_computes computes(out);
    for (std::size_t i = 0; i < 2 * behind; ++i) computes.forward(0);
    for (std::size_t i = 0; i < before; ++i) {
      computes.forward(0);
      computes.forward(1);
    }
    for (std::size_t i = 0; i < behind; ++i) {
      computes.input(1);
      computes.weight(1);
      computes.forward(1);
    }
    const auto pair = [&](std::size_t forward_chunk, bool is_first) {
      if (Pairs == pair_form::atomic && !is_first) return computes.pair(forward_chunk, 1 - forward_chunk);
      computes.forward(forward_chunk);
      computes.backward(1 - forward_chunk);
    };
    for (std::size_t i = 2 * at.ranks; i < at.micro_batches + before; ++i) {
      pair(0, behind == 0 && i == 2 * at.ranks);  // the last rank has nothing to gain from its first pair
      pair(1, false);
    }
    for (std::size_t i = 0; i < behind; ++i) {
      computes.backward(1);
      pair(1, false);
    }
    // From the middle on, weight gradients are left for the time in which the rank would wait.
    const std::size_t middle = before / 2;
    for (std::size_t i = 0; i < before; ++i) {
      const bool splits_both = i > middle || (i == middle && at.rank % 2 == 1);
      splits_both ? computes.input(1) : computes.backward(1);
      i >= middle ? computes.input(0) : computes.backward(0);
    }
    for (std::size_t i = 0; i < behind; ++i) {
      computes.weight(computes.owed(1) > 0 ? 1 : 0);
      computes.input(0);
    }
    while (computes.owed(1) > 0) computes.weight(1);
    while (computes.owed(0) > 0) computes.weight(0);
  }
};
using dualpipe_v_rule = dualpipe_v_form<pair_form::apart>;
/// DualPipeV of pairs. It is shorter than the other where a pair saves more than (p - 1) / (2 m - p - 2) of a forward.
using dualpipe_v_atomic_rule = dualpipe_v_form<pair_form::atomic>;

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
