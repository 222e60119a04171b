// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the pieces of all ranks lie in the files of a checkpoint. It is the same for every checkpoint of a run, and is
// exchanged once.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/group.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/box.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stored_bytes.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/train/checkpoint/checkpoint_folder.hpp"
#include "belay/train/checkpoint/checkpoint_writer.hpp"
#include "belay/train/checkpoint/manifest.hpp"
#include "belay/train/safetensors/file_agreement.hpp"
#include "belay/train/safetensors/header.hpp"
#include "belay/train/stage_names.hpp"

namespace belay::inline BELAY_ABI {

/// A piece that this rank writes, and where it lies.
struct declared_piece {
  std::string tensor;
  std::vector<std::uint64_t> shape;    // of the tensor
  manifest_piece piece;                // its file is 0 for values, 1 for state of an optimizer
  std::vector<stored_bytes> segments;  // one after another
};

/// The state that a rank keeps of a run, and which of it it writes: over all ranks every element once. State that
/// several ranks keep alike is divided among them, or goes to each in turn where it is small.
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
  [[nodiscard]] std::vector<manifest_tensor> declarations() const;

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

/// It is made once, by `checkpoints`.
class checkpoint_layout {
 public:
  checkpoint_layout() = default;
  /// The layout of all that the ranks of `of`, a mesh of `shape`, have declared. A tensor that several pipeline
  /// stages list, as they do with constants, is written by the first. Collective. Throws usage_error on all ranks where
  /// stages list a tensor in two shapes, or its ranks do not write each element once.
  checkpoint_layout(const group& of, const axes& shape, const declared_state& declared, where at);

  /// Whether several stages list a tensor.
  [[nodiscard]] bool has_copies() const noexcept { return !copies_.empty(); }
  /// Of those tensors, sums over what this rank has of each, as each stage has it: over all ranks, what
  /// `expect_equal_copies` compares. `memory` and `staging` are for reading. Throws tier_file_error.
  [[nodiscard]] std::vector<std::uint64_t> sums_of_copies(std::span<std::byte> memory, file_staging& staging,
                                                          where at) const;
  /// Throws usage_error where stages have different values of a tensor.
  void expect_equal_copies(std::span<const std::uint64_t> sums, where at) const;

  /// The files that this rank writes into `folder` for a checkpoint. Valid until the next call.
  [[nodiscard]] std::vector<file_to_write> files_of_this_rank(const std::string& folder, std::string_view id,
                                                              std::uint64_t step);

  /// The checksums of all files' chunks, in the manifest's order. Collective.
  [[nodiscard]] std::vector<std::uint32_t> gather_checksums(const group& of, const std::vector<file_to_write>& own,
                                                            where at) const;

  /// The manifest of a checkpoint, but for optimizers and states.
  [[nodiscard]] manifest content(std::string_view id, std::uint64_t step,
                                 std::span<const std::uint32_t> checksums) const;

 private:
  static constexpr std::string_view no_id = "0000000000000000";

  struct file {
    std::string name;
    int rank;
    std::vector<safetensors::declaration> declarations;
    std::vector<std::pair<std::size_t, std::size_t>> places;  // tensor and piece
    std::string prefix;
    std::uint64_t bytes = 0;
  };
  struct own_file {
    std::size_t number;
    std::vector<stored_bytes> segments;
    std::string header;
  };

  [[nodiscard]] static std::size_t chunks(const file& of) noexcept {
    return static_cast<std::size_t>(checkpoint_chunks(of.bytes));
  }
  static void replace(std::string& text, std::string_view from, std::string_view to) {
    text.replace(text.find(from), from.size(), to);
  }

  void add(int rank, std::vector<manifest_tensor> declared, where at);
  [[nodiscard]] std::size_t file_number(int rank, std::size_t group);
  // A whole box has its shape, so that other readers of the file see a matrix.
  [[nodiscard]] static safetensors::declaration declaration_of(const manifest_tensor& tensor,
                                                               const manifest_piece& piece);
  // In the order in which `add` took them.
  void keep_own(int rank, const declared_state& declared);
  // What is adjacent in a tier's file is read at once.
  static void append(std::vector<stored_bytes>& to, const stored_bytes& next) {
    if (to.empty() || !to.back().join(next)) to.push_back(next);
  }
  void lay_out_all(where at);

  struct listed_tensor {
    std::size_t tensor;
    int stage;                // of the pipeline, that writes it
    std::vector<int> stages;  // that list it
  };
  struct copied {
    std::size_t tensor;
    std::vector<int> stages;
    std::size_t first;  // of its sums, one a stage
  };
  struct own_copy {
    declared_piece of;
    std::size_t sum;
  };

  // An element that is not there once cannot be read back.
  void expect_whole(where at) const;
  void keep_copies(int rank, const declared_state& declared);
  [[nodiscard]] static std::uint64_t sum_of(const declared_piece& piece, std::span<std::byte> memory,
                                            file_staging& staging, where at);

  axes shape_;
  std::vector<manifest_tensor> tensors_;
  std::map<std::string, listed_tensor, std::less<>> number_of_;
  std::vector<file> files_;  // in the order of ranks
  std::vector<own_file> own_;
  std::vector<copied> copies_;  // what several stages list
  std::vector<own_copy> own_copies_;
  std::vector<std::uint64_t> sums_;  // none yet: one for each stage of each of them
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/checkpoint/checkpoint_layout.ipp"  // IWYU pragma: export
#endif
