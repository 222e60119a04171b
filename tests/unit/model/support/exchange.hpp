// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An expert exchange without ranks, for testing layers alone: every expert is here, rows are copied. It
// has the members that layers use of the library's exchange, and nothing else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "belay/core/view.hpp"
#include "belay/parallel/experts/handles.hpp"
#include "belay/parallel/routing.hpp"

namespace test {

template <class T>
class exchange {
 public:
  using value_type = T;
  using slot_type = belay::view<T, 2>;
  using state = belay::dispatch_state<exchange>;

  explicit exchange(std::size_t capacity) : capacity_(capacity) {}

  template <class Frame>
  belay::dispatched<exchange> dispatch(Frame& frame, belay::view<const T, 2> x, const belay::routing<T>& routed) {
    state f;
    f.exchange = this;
    f.routed = routed;
    f.places = frame.template keep<std::int32_t>(routed.choices.shape());
    f.offsets = frame.template keep<std::size_t>(belay::extents<1>{routed.experts + 1});
    f.inputs = frame.template keep<T>(belay::extents<2>{capacity_, x.extent(1)});
    f.outputs = frame.template keep<T>(belay::extents<2>{capacity_, x.extent(1)});
    f.gradients = frame.template keep<T>(belay::extents<2>{capacity_, x.extent(1)});
    const auto places = f.places;
    const auto offsets = f.offsets;
    const auto rows = f.inputs;
    frame.run([=] {
      std::size_t next = 0;
      for (std::size_t e = 0; e < routed.experts; ++e) {
        offsets[e] = next;
        routed.global_counts[e] = routed.counts[e];
        for (std::size_t i = 0; i < routed.choices.size(); ++i) {
          if (routed.choices.data()[i] != static_cast<std::int32_t>(e)) continue;
          std::copy_n(&x(i / routed.k, 0), x.extent(1), &rows(next, 0));
          places.data()[i] = static_cast<std::int32_t>(next++);
        }
      }
      offsets[routed.experts] = next;
    });
    return belay::dispatched<exchange>{std::move(f)};
  }

  static slot_type rows_in(const slot_type& slot) { return slot; }

  template <class Frame>
  void combine(Frame& frame, state& f, belay::view<T, 2> y, belay::where) {
    const auto routed = f.routed;
    const auto places = f.places;
    const auto outputs = f.outputs;
    frame.run([=] {
      std::fill_n(y.data(), y.size(), T(0));
      for (std::size_t i = 0; i < places.size(); ++i) {
        for (std::size_t c = 0; c < y.extent(1); ++c) {
          y(i / routed.k, c) += routed.weights.data()[i] * outputs(static_cast<std::size_t>(places.data()[i]), c);
        }
      }
    });
  }

  template <class Frame>
  void backward(Frame& frame, state& f, belay::view<const T, 2> dy, belay::view<T, 2> dweights, belay::where) {
    const auto routed = f.routed;
    const auto places = f.places;
    const auto outputs = f.outputs;
    frame.run([=] {
      for (std::size_t i = 0; i < places.size(); ++i) {
        T sum = 0;
        for (std::size_t c = 0; c < dy.extent(1); ++c) {
          T& out = outputs(static_cast<std::size_t>(places.data()[i]), c);
          sum += out * dy(i / routed.k, c);
          out = routed.weights.data()[i] * dy(i / routed.k, c);
        }
        dweights.data()[i] = sum;
      }
    });
  }

  template <class Frame>
  void finish(Frame& frame, state& f, belay::view<T, 2> dx, belay::where) {
    const auto k = f.routed.k;
    const auto places = f.places;
    const auto gradients = f.gradients;
    frame.run([=] {
      std::fill_n(dx.data(), dx.size(), T(0));
      for (std::size_t i = 0; i < places.size(); ++i) {
        for (std::size_t c = 0; c < dx.extent(1); ++c) {
          dx(i / k, c) += gradients(static_cast<std::size_t>(places.data()[i]), c);
        }
      }
    });
  }

  template <class Frame>
  void abandon(Frame&, state&, belay::where) {}

 private:
  std::size_t capacity_;
};

}  // namespace test
