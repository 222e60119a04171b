// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// AdamW on a range of elements. What depends on the step but not on the element (bias corrections, the clip factor,
// the decayed learning rate) is computed once, in double, before the range is touched. An element's result does not
// depend on how the range was cut over ranks.
//
//   const auto scalars = belay::kernel::adamw_at_step<float>({.learning_rate = 1e-3}, step);
//   belay::kernel::for_each_index(count, belay::kernel::adamw<float>{value, gradient, first, second, scalars});
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// The settings that a user chooses for AdamW.
struct adamw_settings {
  /// The constants of AdamW.
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double decay = 0.1;  // decoupled; 0 for vectors such as norms
};

/// One step's scalars; the same for every element of a parameter.
template <real T>
struct adamw_scalars {
  T gradient_scale;  // multiplies the gradient first: clip factor, divisor
  /// The moments' rates of decay, and what they leave of 1.
  T beta1, complement1;  // complement = 1 - beta
  T beta2, complement2;
  T step_size;        // learning_rate / (1 - beta1^step)
  T root_correction;  // 1 / sqrt(1 - beta2^step)
  T epsilon;
  T keep;  // 1 - learning_rate * decay
};

/// The scalars of step `step`, counted from 1.
template <real T>
[[nodiscard]] constexpr adamw_scalars<T> adamw_at_step(const adamw_settings& settings, std::uint64_t step,
                                                       double gradient_scale = 1.0) noexcept {
  double power1 = 1, power2 = 1;  // beta^step by squaring
  double square1 = settings.beta1, square2 = settings.beta2;
  for (std::uint64_t rest = step; rest != 0; rest >>= 1) {
    if ((rest & 1u) != 0) {
      power1 *= square1;
      power2 *= square2;
    }
    square1 *= square1;
    square2 *= square2;
  }
  return {static_cast<T>(gradient_scale),
          static_cast<T>(settings.beta1),
          static_cast<T>(1 - settings.beta1),
          static_cast<T>(settings.beta2),
          static_cast<T>(1 - settings.beta2),
          static_cast<T>(settings.learning_rate / (1 - power1)),
          static_cast<T>(1 / square_root(1 - power2)),
          static_cast<T>(settings.epsilon),
          static_cast<T>(1 - settings.learning_rate * settings.decay)};
}

/// One step's scalars in memory, where a kernel reads them when it runs: what a graph captures is their address.
template <real T>
struct adamw_scalars_in {
  /// Where they are.
  const adamw_scalars<T>* memory;
};
/// The scalars of a kernel that has them, or has their address.
template <real T>
[[nodiscard]] BELAY_HD constexpr const adamw_scalars<T>& scalars_of(const adamw_scalars<T>& own) noexcept {
  return own;
}
template <real T>
[[nodiscard]] BELAY_HD constexpr adamw_scalars<T> scalars_of(const adamw_scalars_in<T>& elsewhere) noexcept {
  return *elsewhere.memory;
}

/// value -= lr * (m^ / (sqrt(v^) + eps) + decay * value). The moments are updated in place. `Gradient` may be narrower
/// than `T`. `Scalars` are the step's, or their address: `adamw_scalars_in`.
template <real T, class Gradient = T, class Scalars = adamw_scalars<T>>
struct adamw {
  /// Updates one element and its moments.
  T* value;
  const Gradient* gradient;
  T* first_moment;
  T* second_moment;
  Scalars at;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    const adamw_scalars<T>& by = scalars_of(at);
    const T g = static_cast<T>(gradient[i]) * by.gradient_scale;
    const T m = by.beta1 * first_moment[i] + by.complement1 * g;
    const T v = by.beta2 * second_moment[i] + by.complement2 * (g * g);
    first_moment[i] = m;
    second_moment[i] = v;
    value[i] = by.keep * value[i] - by.step_size * m / (square_root(v) * by.root_correction + by.epsilon);
  }

  /// Elements of a cache line; asks for those of one ahead of its use.
  static constexpr std::size_t indices_of_line = 64 / sizeof(T);
  BELAY_HD void prefetch(std::size_t i) const noexcept {
    kernel::prefetch(value, i);
    kernel::prefetch(gradient, i);
    kernel::prefetch(first_moment, i);
    kernel::prefetch(second_moment, i);
  }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T, Gradient>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept {
    return are_packs<indices_of_pack>(value, gradient, first_moment, second_moment);
  }
  BELAY_HD void pack(std::size_t i) const noexcept {
    auto of_value = load_pack<indices_of_pack>(value, i);
    auto of_first = load_pack<indices_of_pack>(first_moment, i),
         of_second = load_pack<indices_of_pack>(second_moment, i);
    const auto of_gradient = load_pack<indices_of_pack>(gradient, i);
    run_pack<indices_of_pack>(
        adamw<T, Gradient>{of_value.of, of_gradient.of, of_first.of, of_second.of, scalars_of(at)});
    store_pack(of_value, value, i);
    store_pack(of_first, first_moment, i);
    store_pack(of_second, second_moment, i);
  }
};

/// AdamW of a value that is kept narrower than `T`: a master copy is updated, and the value is it, rounded. A value
/// that is not the master rounded was written from outside (first values, an import), and is taken as the master.
template <real T, stored_real Value, class Scalars = adamw_scalars<T>>
struct adamw_of_master {
  /// The rounded value, and the update of its master copy.
  Value* value;
  adamw<T, T, Scalars> master;

  /// Updates the master copy and rounds it.
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    const Value before = value[i];
    const T kept = master.value[i];
    master.value[i] = before == static_cast<Value>(kept) ? kept : widened(before);
    master(i);
    value[i] = static_cast<Value>(master.value[i]);
  }

  /// Elements of a cache line; asks for those of one ahead of its use.
  static constexpr std::size_t indices_of_line = adamw<T>::indices_of_line;
  BELAY_HD void prefetch(std::size_t i) const noexcept {
    kernel::prefetch(value, i);
    master.prefetch(i);
  }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T, Value>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept {
    return are_packs<indices_of_pack>(value, master.value, master.gradient, master.first_moment, master.second_moment);
  }
  BELAY_HD void pack(std::size_t i) const noexcept {
    auto narrow = load_pack<indices_of_pack>(value, i);
    auto of_value = load_pack<indices_of_pack>(master.value, i);
    auto of_first = load_pack<indices_of_pack>(master.first_moment, i);
    auto of_second = load_pack<indices_of_pack>(master.second_moment, i);
    const auto of_gradient = load_pack<indices_of_pack>(master.gradient, i);
    run_pack<indices_of_pack>(adamw_of_master<T, Value>{
        narrow.of, {of_value.of, of_gradient.of, of_first.of, of_second.of, scalars_of(master.at)}});
    store_pack(narrow, value, i);
    store_pack(of_value, master.value, i);
    store_pack(of_first, master.first_moment, i);
    store_pack(of_second, master.second_moment, i);
  }
};

/// The master copy as `adamw_of_master` takes it, for an update of one's own: the copy, or the value where that is
/// not the copy rounded.
template <real T, stored_real Value>
struct take_master {
  /// The copy, and the rounded value.
  T* master;
  const Value* value;

  /// Of one element.
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    const Value before = value[i];
    if (!(before == static_cast<Value>(master[i]))) master[i] = widened(before);
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
