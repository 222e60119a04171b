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
#include <utility>
#include <vector>

#include "belay/core/box.hpp"
#include "belay/core/config.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/train/checkpoint/manifest.hpp"
#include "belay/train/safetensors/stored_type.hpp"

namespace belay::inline BELAY_ABI {

/// A piece that this rank writes, and where it lies in memory.
struct declared_piece {
  std::string tensor;
  std::vector<std::uint64_t> shape;  // of the tensor
  manifest_piece piece;              // its file is 0 for values, 1 for state of an optimizer
  std::span<const std::byte> memory;
};

/// Throws usage_error where the state of `optimizer` is in a file: checkpoints are written from where state lies.
template <class Optimizer>
void expect_in_memory(const Optimizer& optimizer, where at) {
  if constexpr (requires { optimizer.state_tier(); }) {
    if (optimizer.state_tier() != tier::file) return;
    throw usage_error(
        "the state of this optimizer is in tier file, which checkpoints do not read: keep it in tier host or pinned",
        at);
  }
}

class declared_state {
 public:
  enum file_group : std::size_t { parameters, optimizer };
  static constexpr std::string_view group_names[] = {"parameters", "optimizer"};

  /// Elements `first` and on of the local part of `parameter`, number `number` of its model, have the part `state`,
  /// which is kept alike by as many ranks as `copies` says.
  template <class T, class State>
  void add(const parameter_base<T>& parameter, std::size_t number, std::string_view part, std::size_t first,
           std::span<State> state, copy_place copies) {
    const local_part mine = copies.written(state.size(), sizeof(State), number);
    if (mine.count == 0) return;
    const auto values = std::span<const State>(state).subspan(mine.first, mine.count);
    declared_piece out;
    out.tensor = parameter.name();
    for (const std::size_t extent : parameter.shape()) out.shape.push_back(extent);
    out.piece = {std::string(part),
                 safetensors::stored_as<std::remove_const_t<State>>,
                 part == value_part ? parameters : optimizer,
                 0,
                 parameter.local_box(),
                 first + mine.first,
                 mine.count};
    out.memory = std::as_bytes(values);
    pieces_.push_back(std::move(out));
  }

  [[nodiscard]] std::span<const declared_piece> pieces() const noexcept { return pieces_; }
  /// What they say, without memory: a tensor for each piece.
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
