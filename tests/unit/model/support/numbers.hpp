// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Numbers for tests of layers: repeatable tensors, memory for a layer's parameters, and a comparison of a
// backward with central differences.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "belay/core/view.hpp"

namespace test {

/// A tensor that owns its elements.
template <class T, std::size_t Rank>
struct tensor {
  explicit tensor(belay::extents<Rank> extents, T fill = T(0))
      : shape(extents), values(belay::element_count(extents) + 1, fill) {}
  [[nodiscard]] std::size_t size() const { return belay::element_count(shape); }
  [[nodiscard]] belay::view<T, Rank> view() { return {values.data(), shape}; }
  [[nodiscard]] belay::view<const T, Rank> view() const { return {values.data(), shape}; }

  belay::extents<Rank> shape;
  std::vector<T> values;  // one more than needed, so that the address of an empty tensor is one
};

/// Uniform in [-1, 1], by a small generator that is the same everywhere.
class numbers {
 public:
  explicit numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}
  double next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(state_ >> 11U) / 4503599627370496.0 - 1.0;
  }
  template <class T, std::size_t Rank>
  tensor<T, Rank> make(belay::extents<Rank> shape, double scale = 1) {
    tensor<T, Rank> result(shape);
    for (T& value : result.values) value = static_cast<T>(scale * next());
    return result;
  }

 private:
  std::uint64_t state_;
};

/// Values and gradients for every parameter of a layer or model.
template <class T>
class memory {
 public:
  struct named_values {
    std::string name;
    std::vector<T> value;
    std::vector<T> gradient;
  };

  /// Values uniform in [-scale, scale], around 1 for vectors (norms); gradients zero.
  template <class Layer>
  memory(Layer& layer, std::uint64_t seed, double scale = 0.4) {
    numbers random(seed);
    layer.for_each_parameter([&](auto& parameter) {
      named_values& e = entries_.emplace_back();
      e.name = parameter.name();
      const bool norm = parameter.shape().rank() == 1;
      for (std::size_t i = 0; i < parameter.local_size(); ++i) {
        e.value.push_back(static_cast<T>((norm ? 1.0 : 0.0) + scale * random.next()));
      }
      e.gradient.assign(e.value.size(), T(0));
      parameter.bind(e.value.data(), e.gradient.data());
    });
  }

  [[nodiscard]] std::deque<named_values>& entries() { return entries_; }
  [[nodiscard]] named_values& named(const std::string& name) {
    for (named_values& e : entries_) {
      if (e.name == name) return e;
    }
    FAIL("no parameter " << name);
    return entries_.front();
  }

 private:
  std::deque<named_values> entries_;
};

/// Compares `gradient` with central differences of `loss` in each of `values`: the largest error over the
/// largest gradient. Four points, so that the rule itself is exact to the fourth order.
template <class Loss>
double difference_error(std::vector<double>& values, std::size_t count, const std::vector<double>& gradient,
                        Loss loss) {
  double worst = 0;
  double largest = 1e-3;
  const double h = 1e-3;
  for (std::size_t i = 0; i < count; ++i) {
    const double old = values[i];
    const auto at = [&](double shift) {
      values[i] = old + shift;
      return static_cast<double>(loss());
    };
    const double expected = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
    values[i] = old;
    worst = std::max(worst, std::abs(expected - gradient[i]));
    largest = std::max(largest, std::abs(expected));
  }
  return worst / largest;
}

/// sum(a * b): a loss whose gradient with respect to `a` is `b`.
template <class A, class B>
double inner_product(const A& a, const B& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a.data()[i]) * static_cast<double>(b.data()[i]);
  return sum;
}

}  // namespace test
