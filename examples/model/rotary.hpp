// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rotary positions in the half-split layout: element j of a head is rotated with element j + d/2 by the angle
// position * theta^(-2j/d). The table of sines and cosines is made once, for the model's longest sequence, and shared
// by all layers.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "belay/core/error.hpp"
#include "model/arithmetic.hpp"
#include "model/matrix.hpp"

namespace model {

/// The direction of the rotation: a gradient is rotated backwards.
enum class turn { forwards, backwards };

template <class T>
class rotary {
 public:
  rotary(std::size_t positions, std::size_t head_dim, double theta) : positions_(positions), half_(head_dim / 2) {
    if (head_dim % 2 != 0) throw belay::usage_error("rotary positions need an even head size", belay::where::current());
    cosines_.resize(positions * half_);
    sines_.resize(positions * half_);
    for (std::size_t j = 0; j < half_; ++j) {
      const double frequency = std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
      for (std::size_t position = 0; position < positions; ++position) {
        cosines_[position * half_ + j] = static_cast<T>(std::cos(static_cast<double>(position) * frequency));
        sines_[position * half_ + j] = static_cast<T>(std::sin(static_cast<double>(position) * frequency));
      }
    }
  }

  [[nodiscard]] std::size_t positions() const { return positions_; }

  /// Rotates `heads` heads side by side in every row; row i has position i modulo `length`.
  void apply(matrix<T> rows, std::size_t heads, std::size_t length, turn way) const {
    for (std::size_t i = 0; i < rows.rows; ++i) {
      const T* cosine = cosines_.data() + (i % length) * half_;
      const T* sine = sines_.data() + (i % length) * half_;
      const T sign = way == turn::forwards ? T(1) : T(-1);
      for (std::size_t head = 0; head < heads; ++head) {
        T* first = rows.row(i) + head * 2 * half_;
        T* second = first + half_;
        for_lanes<T>(half_, [=](auto at) {
          const auto c = at.load(cosine);
          const auto s = at.load(sine) * sign;
          const auto x = at.load(first);
          const auto y = at.load(second);
          at.store(first, x * c - y * s);
          at.store(second, y * c + x * s);
        });
      }
    }
  }

 private:
  std::size_t positions_;
  std::size_t half_;
  std::vector<T> cosines_;  // [positions, head size / 2]
  std::vector<T> sines_;
};

}  // namespace model
