// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An expert exchange of a rank alone, for testing layers: it is made by the first dispatch, which knows the sizes, and
// takes slots back of frames that are gone.
#pragma once

#include <cstddef>
#include <optional>

#include "belay/core/view.hpp"
#include "belay/device/memory.hpp"
#include "belay/parallel/experts.hpp"
#include "unit/parallel/support/group_of_one.hpp"

namespace test {

template <class T>
class exchange {
 public:
  using value_type = T;

  explicit exchange(std::size_t capacity) : capacity_(capacity) {}

  template <class Frame>
  BELAY_OPENS belay::dispatched<T> dispatch(Frame& frame, belay::view<const T, 2> x, const belay::routing<T>& routed) {
    if (!here_ || here_->shape().hidden != x.extent(1))
      here_.emplace(alone_, heap_, belay::expert_settings{routed.experts, routed.k, x.extent(1), capacity_});
    static_cast<void>(here_->take_overflow());
    if (frame.engine().obligations().open_count() == 0) here_->begin_step();
    return here_->dispatch(frame, x, routed);
  }

 private:
  static constexpr std::size_t room = std::size_t{1} << 22;

  std::size_t capacity_;
  belay::host_pages memory_{room};
  belay::group alone_ = group_over(memory_);
  belay::symmetric_heap<belay::group> heap_{alone_, {.bytes = room}};
  std::optional<belay::expert_exchange<T>> here_;
};

}  // namespace test
