// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank keeps of a run's state, and which of it it writes: over all ranks every element once. What several ranks
// keep alike is divided among them, or goes to each in turn where it is small.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/box.hpp"
#include "belay/core/config.hpp"
#include "belay/device/stored_bytes.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/train/checkpoint/manifest.hpp"
#include "belay/train/safetensors/stored_type.hpp"

namespace belay::inline BELAY_ABI {

/// A piece that this rank writes, and where it lies.
struct declared_piece {
  std::string tensor;
  std::vector<std::uint64_t> shape;    // of the tensor
  manifest_piece piece;                // its file is 0 for values, 1 for state of an optimizer
  std::vector<stored_bytes> segments;  // one after another
};

class declared_state {
 public:
  enum file_group : std::size_t { parameters, optimizer };
  static constexpr std::string_view group_names[] = {"parameters", "optimizer"};

  /// `count` elements from `first` on of the local part of `parameter`, number `number` of its model, have the part
  /// `state`, which lies at `places`, one after another, and is kept alike by as many ranks as `copies` says.
  template <class State, class T>
  void add(const parameter_base<T>& parameter, std::size_t number, std::string_view part, std::size_t first,
           std::size_t count, std::span<const stored_bytes> places, copy_place copies) {
    const local_part mine = copies.written(count, sizeof(State), number);
    if (mine.count == 0) return;
    declared_piece out;
    out.tensor = parameter.name();
    for (const std::size_t extent : parameter.shape()) out.shape.push_back(extent);
    out.piece = {std::string(part),
                 safetensors::stored_as<State>,
                 part == value_part ? parameters : optimizer,
                 0,
                 parameter.local_box(),
                 first + mine.first,
                 mine.count};
    each_stored_part(places, mine.first * sizeof(State), mine.count * sizeof(State),
                     [&](const stored_bytes& each) { out.segments.push_back(each); });
    pieces_.push_back(std::move(out));
  }
  /// `state`, which lies in memory, is the part called `part` of as many elements from `first` on of the local part of
  /// `parameter`, number `number` of its model. It is kept alike by as many ranks as `copies` says.
  template <class T, class State>
  void add(const parameter_base<T>& parameter, std::size_t number, std::string_view part, std::size_t first,
           std::span<State> state, copy_place copies) {
    const stored_bytes place(std::as_bytes(state));
    add<std::remove_const_t<State>>(parameter, number, part, first, state.size(),
                                    std::span<const stored_bytes>(&place, 1), copies);
  }

  [[nodiscard]] std::span<const declared_piece> pieces() const noexcept { return pieces_; }
  /// The declarations of the pieces, without where they lie: a tensor for each piece.
  [[nodiscard]] std::vector<manifest_tensor> declarations() const {
    std::vector<manifest_tensor> out;
    for (const declared_piece& each : pieces_) out.push_back({each.tensor, each.shape, {each.piece}});
    return out;
  }

 private:
  std::vector<declared_piece> pieces_;
};

/// Calls `visit(element of the tensor, element of the range, count)` for the contiguous runs of elements `first` to
/// `first + count - 1` of the local part of `parameter`.
template <class T, class Visit>
void each_run_of(const parameter_base<T>& parameter, std::size_t first, std::size_t count, Visit&& visit) {
  const box_runs runs(parameter.shape().extents(), parameter.local_box());
  runs.each_common(
      first, first + count, 0, parameter.global_size(),
      [&](std::size_t global, std::size_t local, std::size_t length) { visit(global, local - first, length); });
}

}  // namespace belay::inline BELAY_ABI
