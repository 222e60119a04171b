// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One output element from the input elements of the same index. A kernel is a struct of pointers and scalars whose
// operator() does index i, so that the host's loop, a CUDA launcher and a test run the same arithmetic. Input and
// output may be the same array; other overlaps are not allowed.
//
//   const belay::kernel::axpy<float> update{0.5F, x, y};  // y[i] += 0.5 * x[i]
//   belay::kernel::for_each_index(count, update);
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// out[i] = value
template <class T>
struct fill {
  /// The operands, where the result goes, and one index of it.
  T* out;
  T value;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { out[i] = value; }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(out); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    pack_of<T, indices_of_pack> to;
    run_pack<indices_of_pack>(fill{to.of, value});
    store_pack(to, out, i);
  }
};

/// out[i] = in[i], converted where the element types differ (rounded to nearest where they are narrower).
template <class In, class Out = In>
struct copy {
  /// The operands, where the result goes, and one index of it.
  const In* in;
  Out* out;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { out[i] = static_cast<Out>(in[i]); }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<In, Out>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(in, out); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    const auto from = load_pack<indices_of_pack>(in, i);
    pack_of<Out, indices_of_pack> to;
    run_pack<indices_of_pack>(copy{from.of, to.of});
    store_pack(to, out, i);
  }
};

/// out[i] = a[i] + b[i]; both may be wider.
template <stored_real T, stored_real A = T, stored_real B = T>
struct add {
  /// The operands, where the result goes, and one index of it.
  const A* a;
  const B* b;
  T* out;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    out[i] = static_cast<T>(widened(a[i]) + widened(b[i]));
  }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T, A>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(a, b, out); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    const auto x = load_pack<indices_of_pack>(a, i);
    const auto y = load_pack<indices_of_pack>(b, i);
    pack_of<T, indices_of_pack> to;
    run_pack<indices_of_pack>(add{x.of, y.of, to.of});
    store_pack(to, out, i);
  }
};

/// out[i] = a[i] * b[i]
template <real T>
struct multiply {
  /// The operands, where the result goes, and one index of it.
  const T* a;
  const T* b;
  T* out;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { out[i] = a[i] * b[i]; }
};

/// y[i] += alpha * x[i]; x may be narrower.
template <real T, stored_real X = T>
struct axpy {
  /// The operands, where the result goes, and one index of it.
  T alpha;
  const X* x;
  T* y;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { y[i] += alpha * widened(x[i]); }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T, X>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(x, y); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    const auto from = load_pack<indices_of_pack>(x, i);
    auto to = load_pack<indices_of_pack>(y, i);
    run_pack<indices_of_pack>(axpy{alpha, from.of, to.of});
    store_pack(to, y, i);
  }
};

/// x[i] *= factor
template <real T>
struct scale {
  /// The operands, where the result goes, and one index of it.
  T factor;
  T* x;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { x[i] *= factor; }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(x); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    auto here = load_pack<indices_of_pack>(x, i);
    run_pack<indices_of_pack>(scale{factor, here.of});
    store_pack(here, x, i);
  }
};

/// x[i] *= *factor, which is read when it runs.
template <real T>
struct scale_from {
  /// The operands, where the result goes, and one index of it.
  const T* factor;
  T* x;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { x[i] *= *factor; }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(x); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    auto here = load_pack<indices_of_pack>(x, i);
    run_pack<indices_of_pack>(scale<T>{*factor, here.of});
    store_pack(here, x, i);
  }
};

/// out[i] = factor * x[i]
template <real T>
struct multiple {
  /// The operands, where the result goes, and one index of it.
  T factor;
  const T* x;
  T* out;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { out[i] = factor * x[i]; }
};

/// out[i] = a[i] + alpha * b[i]
template <real T>
struct add_scaled {
  /// The operands, where the result goes, and one index of it.
  const T* a;
  T alpha;
  const T* b;
  T* out;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { out[i] = a[i] + alpha * b[i]; }
};

/// out[i] = silu(gate[i]) * up[i], the activation of a SwiGLU.
template <stored_real T, stored_real Out = T>
struct silu_gate {
  /// The operands, where the result goes, and one index of it.
  const T* gate;
  const T* up;
  Out* out;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    out[i] = static_cast<Out>(silu(widened(gate[i])) * widened(up[i]));
  }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T, Out>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(gate, up, out); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    const auto of_gate = load_pack<indices_of_pack>(gate, i), of_up = load_pack<indices_of_pack>(up, i);
    pack_of<Out, indices_of_pack> to;
    run_pack<indices_of_pack>(silu_gate{of_gate.of, of_up.of, to.of});
    store_pack(to, out, i);
  }
};

/// The derivatives of `silu_gate` by both inputs; `dgate` and `dup` may be `gate` and `up` themselves.
template <stored_real T>
struct silu_gate_backward {
  /// Derivatives of `silu_gate` by both of its inputs; dgate and dup may be gate and up.
  const T* gate;
  const T* up;
  const T* dout;
  T* dgate;
  T* dup;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    using number = compute_type_t<T>;
    const number g = widened(gate[i]);
    const number u = widened(up[i]);
    const number d = widened(dout[i]);
    const number s = sigmoid(g);
    dgate[i] = static_cast<T>(d * u * (s * (number(1) + g * (number(1) - s))));
    dup[i] = static_cast<T>(d * (g * s));
  }
};

/// The derivatives of `silu_gate` by both inputs, for a backward that has not kept the output: it is written again to
/// `out`, which may be `dout` itself. `dgate` and `dup` may be `gate` and `up`.
template <stored_real T>
struct silu_gate_again_backward {
  /// The operands of the derivatives, and where the output goes.
  silu_gate_backward<T> derivatives;
  T* out;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    const auto y = silu(widened(derivatives.gate[i])) * widened(derivatives.up[i]);
    derivatives(i);
    out[i] = static_cast<T>(y);
  }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept {
    const silu_gate_backward<T>& of = derivatives;
    return are_packs<indices_of_pack>(of.gate, of.up, of.dout, of.dgate, of.dup, out);
  }
  BELAY_HD void pack(std::size_t i) const noexcept {
    const auto gate = load_pack<indices_of_pack>(derivatives.gate, i),
               up = load_pack<indices_of_pack>(derivatives.up, i),
               dout = load_pack<indices_of_pack>(derivatives.dout, i);
    pack_of<T, indices_of_pack> dgate, dup, to;
    run_pack<indices_of_pack>(silu_gate_again_backward{{gate.of, up.of, dout.of, dgate.of, dup.of}, to.of});
    store_pack(dgate, derivatives.dgate, i);
    store_pack(dup, derivatives.dup, i);
    store_pack(to, out, i);
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
