// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The questions that a rehearsed body asks of its rank, and the numbers that note that they were read.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace rehearsal {

/// The questions that a body has asked of its rank, which ranks could answer differently. Ranks that answer alike run
/// the body alike, so that one of them is rehearsed for all.
class rank_questions {
 public:
  /// The body has asked for the rank's number, or its place along an axis.
  void ask_number() noexcept { number_ = true; }
  void ask_place(const axes& shape, axis which) {
    for (shape_asked& each : places_) {
      if (each.shape == shape) return each.along.add(which);
    }
    places_.push_back({shape, {which}});
  }

  /// Whether the ranks `a` and `b` of one world give the same answers.
  [[nodiscard]] bool same(int a, int b) const noexcept {
    if (number_ && a != b) return false;
    for (const shape_asked& each : places_) {
      const coordinate one = coordinate_of(each.shape, a), other = coordinate_of(each.shape, b);
      const auto asked = [&](axis which) { return each.along.has(which); };
      const bool plane = asked(axis::replica) || asked(axis::dense_shard);
      const bool data = asked(axis::data) || asked(axis::shard) || asked(axis::shard_replica);
      if (asked(axis::pipeline) && one.pipeline != other.pipeline) return false;
      if ((data || plane) && one.data != other.data) return false;
      if ((asked(axis::expert) || plane) && one.expert != other.expert) return false;
      if (asked(axis::tensor) && one.tensor != other.tensor) return false;
    }
    return true;
  }

 private:
  struct shape_asked {
    axes shape;
    axis_set along;
  };
  std::vector<shape_asked> places_;
  bool number_ = false;
};

/// A number of a rank along an axis; in a rehearsal reading it is a question.
class asked_number {
 public:
  /// A number that notes in `asked` that it was read; null: it is no question.
  asked_number(std::shared_ptr<rank_questions> asked, const axes& shape, axis which, int value) noexcept
      : asked_(std::move(asked)), shape_(shape), which_(which), value_(value) {}
  operator int() const {
    if (asked_ != nullptr) asked_->ask_place(shape_, which_);
    return value_;
  }

 private:
  std::shared_ptr<rank_questions> asked_;
  axes shape_;
  axis which_;
  int value_;
};

/// The coordinate of a rank, each number of which is a question of its own.
struct asked_coordinate {
  /// Numbers that note that they were read.
  asked_number pipeline, data, expert, tensor;

  /// All of them, which counts as a question for each.
  operator coordinate() const { return {pipeline, data, expert, tensor}; }
};

/// The coordinate of rank `number` in a mesh of that shape, whose numbers note in `asked` that they were read.
[[nodiscard]] inline asked_coordinate coordinate_asked(const std::shared_ptr<rank_questions>& asked, const axes& shape,
                                                       int number) {
  const coordinate here = coordinate_of(shape, number);
  return {{asked, shape, axis::pipeline, here.pipeline},
          {asked, shape, axis::data, here.data},
          {asked, shape, axis::expert, here.expert},
          {asked, shape, axis::tensor, here.tensor}};
}

}  // namespace rehearsal
}  // namespace belay::inline BELAY_ABI
