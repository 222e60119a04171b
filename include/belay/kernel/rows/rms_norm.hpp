// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// RMS norm of a row: y = weight * x / sqrt(mean(x^2) + epsilon). The forward keeps one number a row, the inverse root,
// and the backward reads it instead of computing it again.
// IWYU pragma: private, include "belay/kernel/rows.hpp"
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// One row with a known inverse root: y = weight * (x * inverse).
template <stored_real T, stored_real Out = T, stored_real Weight = T>
struct rms_norm_element {
  const T* x;
  const Weight* weight;
  Out* y;
  compute_type_t<T> inverse;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    y[i] = static_cast<Out>(widened(weight[i]) * (widened(x[i]) * inverse));
  }

  static constexpr std::size_t indices_of_pack = pack_size<T, Out, Weight>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(x, weight, y); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    const auto of_x = load_pack<indices_of_pack>(x, i);
    const auto of_weight = load_pack<indices_of_pack>(weight, i);
    pack_of<Out, indices_of_pack> to;
    run_pack<indices_of_pack>(rms_norm_element{of_x.of, of_weight.of, to.of, inverse});
    store_pack(to, y, i);
  }
};

/// out row r = weight * in row r * inverse[r], where inverse[r] is written too. `out` may be `in`. `around`, unless
/// null, gets the row as it was, which goes around the norm; it is memory of its own.
template <stored_real T, stored_real Out = T, stored_real Weight = T>
struct rms_norm_rows {
  using number = compute_type_t<T>;

  const T* in;
  const Weight* weight;
  Out* out;
  number* inverse;
  std::size_t width;
  number epsilon;
  T* around = nullptr;

  [[nodiscard]] constexpr std::size_t columns() const noexcept { return width; }
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    const T* x = in + row * width;
    const number factor = number(1) / square_root(row_dot(team, x, x, width) / static_cast<number>(width) + epsilon);
    if (team.lane == 0) inverse[row] = factor;
    if (around != nullptr) for_each_pack(team, width, copy<T>{x, around + row * width});
    for_each_pack(team, width, rms_norm_element<T, Out, Weight>{x, weight, out + row * width, factor});
  }
};

/// The output again, with the same bits, from `inverse`: for a backward that has not kept it.
template <stored_real T, stored_real Out = T, stored_real Weight = T>
struct rms_norm_rows_again {
  const T* in;
  const Weight* weight;
  const compute_type_t<T>* inverse;
  Out* out;
  std::size_t width;

  [[nodiscard]] constexpr std::size_t columns() const noexcept { return width; }
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    for_each_pack(team, width,
                  rms_norm_element<T, Out, Weight>{in + row * width, weight, out + row * width, inverse[row]});
  }
};

/// The gradient of the input, from the forward's input and `inverse`. Where `beside` is not null, it is added: the
/// gradient that went around the norm. Gradients may be wider than the input; `din` may be any of the others that is of
/// its type.
template <stored_real T, stored_real Outer = T, stored_real Inner = T, stored_real Beside = T, stored_real Weight = T>
struct rms_norm_rows_backward {
  using number = compute_type_t<T>;

  const T* in;
  const Weight* weight;
  const number* inverse;
  const Outer* dout;
  Inner* din;
  std::size_t width;
  const Beside* beside = nullptr;

  [[nodiscard]] constexpr std::size_t columns() const noexcept { return width; }

  // The derivative through the mean in the denominator: the sum over i of dy[i] weight[i] x[i].
  struct projection {
    const Outer* dy;
    const Weight* weight;
    const T* x;
    BELAY_HD constexpr number operator()(std::size_t i) const noexcept {
      return widened(dy[i]) * widened(weight[i]) * widened(x[i]);
    }

    static constexpr std::size_t indices_of_pack = pack_size<Outer, Weight, T>;
    [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(dy, weight, x); }
    [[nodiscard]] BELAY_HD auto pack(std::size_t i) const noexcept {
      const auto of_dy = load_pack<indices_of_pack>(dy, i);
      const auto of_weight = load_pack<indices_of_pack>(weight, i);
      const auto of_x = load_pack<indices_of_pack>(x, i);
      return terms_of<number, indices_of_pack>(projection{of_dy.of, of_weight.of, of_x.of});
    }
  };
  struct element {
    const T* x;
    const Weight* weight;
    const Outer* dy;
    Inner* dx;
    number inverse;
    number through_mean;
    BELAY_HD constexpr number value(std::size_t i) const noexcept {
      return inverse * (widened(weight[i]) * widened(dy[i])) - through_mean * widened(x[i]);
    }
    BELAY_HD constexpr void operator()(std::size_t i) const noexcept { dx[i] = static_cast<Inner>(value(i)); }

    static constexpr std::size_t indices_of_pack = pack_size<T, Weight, Outer, Inner>;
    [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(x, weight, dy, dx); }
    BELAY_HD void pack(std::size_t i) const noexcept {
      const auto of_x = load_pack<indices_of_pack>(x, i);
      const auto of_weight = load_pack<indices_of_pack>(weight, i);
      const auto of_dy = load_pack<indices_of_pack>(dy, i);
      pack_of<Inner, indices_of_pack> to;
      run_pack<indices_of_pack>(element{of_x.of, of_weight.of, of_dy.of, to.of, inverse, through_mean});
      store_pack(to, dx, i);
    }
  };
  struct element_beside {
    element norm;
    const Beside* beside;
    BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
      norm.dx[i] = static_cast<Inner>(widened(beside[i]) + norm.value(i));
    }

    static constexpr std::size_t indices_of_pack = pack_size<T, Weight, Outer, Inner, Beside>;
    [[nodiscard]] BELAY_HD bool packs() const noexcept {
      return are_packs<indices_of_pack>(norm.x, norm.weight, norm.dy, norm.dx, beside);
    }
    BELAY_HD void pack(std::size_t i) const noexcept {
      const auto of_x = load_pack<indices_of_pack>(norm.x, i);
      const auto of_weight = load_pack<indices_of_pack>(norm.weight, i);
      const auto of_dy = load_pack<indices_of_pack>(norm.dy, i);
      const auto of_beside = load_pack<indices_of_pack>(beside, i);
      pack_of<Inner, indices_of_pack> to;
      run_pack<indices_of_pack>(
          element_beside{{of_x.of, of_weight.of, of_dy.of, to.of, norm.inverse, norm.through_mean}, of_beside.of});
      store_pack(to, norm.dx, i);
    }
  };

  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    const T* x = in + row * width;
    const Outer* dy = dout + row * width;
    const number r = inverse[row];
    const number along = sum_in_lanes<number>(team, projection{dy, weight, x}, width) / static_cast<number>(width);
    const element norm{x, weight, dy, din + row * width, r, r * r * r * along};
    if (beside == nullptr)
      for_each_pack(team, width, norm);
    else
      for_each_pack(team, width, element_beside{norm, beside + row * width});
  }
};

/// The part of a row in the gradient of the weight: dout * (in * inverse). `column_sums` adds the rows, before
/// `rms_norm_rows_backward` where that overwrites `dout`.
template <stored_real T, stored_real Outer = T>
struct rms_norm_weight_term {
  const T* in;
  const compute_type_t<T>* inverse;
  const Outer* dout;
  std::size_t width;
  BELAY_HD constexpr compute_type_t<T> operator()(std::size_t row, std::size_t column) const noexcept {
    const std::size_t i = row * width + column;
    return widened(dout[i]) * (widened(in[i]) * inverse[row]);
  }

  static constexpr std::size_t columns_of_pack = pack_size<T, Outer>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept {
    return width % columns_of_pack == 0 && are_packs<columns_of_pack>(in, dout);
  }
  [[nodiscard]] BELAY_HD auto pack(std::size_t row, std::size_t column) const noexcept {
    const std::size_t i = row * width + column;
    const auto of_in = load_pack<columns_of_pack>(in, i);
    const auto of_dout = load_pack<columns_of_pack>(dout, i);
    pack_of<compute_type_t<T>, columns_of_pack> out;
    run_pack<columns_of_pack>(
        [&](std::size_t e) { out.of[e] = widened(of_dout.of[e]) * (widened(of_in.of[e]) * inverse[row]); });
    return out;
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
