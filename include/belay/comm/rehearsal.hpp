// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any rank of any world, without the others: its communication returns at once and moves nothing. The plan runs the
// real step with it, so that sizes and orders come from the code that will run and not from a second description of
// it. Its symmetric memory has addresses and no pages.
//
//   belay::rehearsal::rank rank(0, 1024);           // of a world that does not exist
//   const belay::rehearsal::group world = rank.world();
//   world.all_reduce(std::span(grad), belay::sum);  // returns at once; `grad` is not touched
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/group_operations.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {
namespace rehearsal {

/// How large the collectives are that a body calls in each of its groups: what a world sizes the memory by that its
/// ranks communicate over. Parts of different lengths are counted as the longest of them, in whole packs of 16 bytes.
class call_sizes {
 public:
  /// Groups that are made alike: all ranks of the world; those along an axis of a mesh; or those that a body has named.
  struct alike_groups {
    axes shape = {};                 ///< of the mesh, and
    std::optional<axis> along = {};  ///< the axis, of a group along one
    std::vector<int> members = {};   ///< of a group that a body has named
    int ranks = 1;                   ///< in each group
    std::size_t bytes = 0;           ///< that a rank gives its peers in the largest collective
    std::size_t reduced = 0;         ///< in the largest that adds

    /// Whether they are all ranks of the world, which no body has made.
    [[nodiscard]] bool of_world() const noexcept { return !along && members.empty(); }
    /// Whether `ranks_there` are such a group, which is not made with the world.
    [[nodiscard]] bool has(std::span<const int> ranks_there) const;
    [[nodiscard]] bool made_as(const alike_groups& other) const noexcept {
      return shape == other.shape && along == other.along && members == other.members;
    }
  };

  /// The entry of such groups, which is made where there is none; and a collective there.
  [[nodiscard]] std::size_t entry_of(const alike_groups& which);
  void note(std::size_t entry, std::size_t bytes, std::size_t reduced) noexcept {
    entries_[entry].bytes = greater_of(entries_[entry].bytes, bytes);
    entries_[entry].reduced = greater_of(entries_[entry].reduced, reduced);
  }
  void add(const call_sizes& other) {
    for (const alike_groups& each : other.entries_) note(entry_of(each), each.bytes, each.reduced);
  }

  /// In the order in which groups were first asked for.
  [[nodiscard]] const std::vector<alike_groups>& entries() const noexcept { return entries_; }
  /// The largest of the world; of the groups that are made of `members`; and, of those that add, of all groups.
  [[nodiscard]] std::size_t of_world() const noexcept;
  [[nodiscard]] std::size_t of(std::span<const int> members) const;
  [[nodiscard]] std::size_t largest_reduced() const noexcept;

 private:
  std::vector<alike_groups> entries_;
};

/// Has the operations of a backend's group. None touches the memory it is given, fails or waits; a started one is
/// ready.
class group : public group_operations<group> {
 public:
  /// No byte moves; what it promises is what backends promise.
  static constexpr bool moves_nothing = true;
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;

  /// Ranks of the world in order, and this one's number among them; `promises` are those of the backend that will run.
  group(std::vector<int> members, int rank, const group_traits& promises = all_promises()) noexcept
      : members_(std::move(members)), rank_(rank), promises_(promises) {}

  /// The promises of a rehearsal that stands for no world.
  [[nodiscard]] static constexpr group_traits all_promises() noexcept {
    group_traits out;
    out.rehearsed = out.sums_in_rank_order = out.sums_alike = out.has_varying_counts = out.starts_local_work = true;
    out.addresses_peers = true;
    return out;
  }
  /// The abilities and promises of the group that will run.
  [[nodiscard]] const group_traits& promises() const noexcept { return promises_; }

  /// This rank's number in the group, which is a question.
  [[nodiscard]] int rank() const;
  /// This rank's number in the group, which is no question: for a library whose sizes are computed for all ranks; see
  /// `layout_rank`.
  [[nodiscard]] int unasked_rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  /// Their numbers in the world: a question too, but in a group of all.
  [[nodiscard]] std::span<const int> members() const;

  /// Nothing of `work` is done.
  template <class Work>
  [[nodiscard]] pending start_composite(operation what, const Work&, const start_order& how = where::current()) const {
    return started(what, how);
  }

  /// Nothing of `work` is done.
  template <class Work>
  [[nodiscard]] pending start_local(operation what, const Work&, const start_order& how = where::current()) const {
    return started(what, how);
  }

  /// Notes its size alone; `start_call` gives a communication that is ready.
  void run_call(const op_call& call) const noexcept { note(call); }
  [[nodiscard]] pending start_call(const op_call& call, const start_order& how) const noexcept {
    note(call);
    return started(call.what(), how);
  }

  /// Distinct addresses for every rank that must not be read or written.
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at = where::current()) const {
    return symmetric_region::map(size(), bytes, backing::addresses_only, at);
  }

 private:
  // It comes after what it would come after in a run.
  [[nodiscard]] pending started(operation what, const start_order& how) const noexcept;
  void note(operation what, std::size_t bytes) const noexcept;
  void note(const op_call& call) const noexcept;

  friend class rank;

  std::vector<int> members_;
  int rank_;
  group_traits promises_;
  std::shared_ptr<rank_questions> asked_;
  std::shared_ptr<stream_clock> clock_;  // of all communications of the rank; of a group without a rank, none
  axes shape_;                           // of the mesh that it is a group of
  std::optional<axis> along_;  // the mesh's axis; nothing: its ranks are those of the world, or a program's choice
  std::shared_ptr<call_sizes> sizes_;
  std::size_t entry_ = 0;
};

/// Rank `number` of a world of `size` that does not exist.
class rank {
 public:
  using group_type = rehearsal::group;
  using place_type = asked_coordinate;

  /// Rank `number` of a world of `size`. Throws usage_error where there is no such rank.
  rank(int number, int size, where at = where::current()) : rank(number, size, group::all_promises(), at) {}
  /// Rank `number` of a world of `size` whose groups promise `promises`, of those that move something.
  rank(int number, int size, const group_traits& promises, where at = where::current());

  /// This is a question.
  [[nodiscard]] int number() const noexcept;
  [[nodiscard]] int unasked_rank() const noexcept { return number_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] rehearsal::group world() const { return asking({all_ranks_, number_, promises_}, {.ranks = size()}); }
  /// Its place in a mesh.
  [[nodiscard]] asked_coordinate place(const axes& shape) const { return coordinate_asked(asked_, shape, number_); }
  /// A group along an axis of a mesh.
  [[nodiscard]] rehearsal::group group_along(std::span<const int> members, const axes& shape, axis which,
                                             where at = where::current()) const;
  [[nodiscard]] rehearsal::group group(std::span<const int> members, where at = where::current()) const;
  [[nodiscard]] static constexpr std::uint64_t abandoned() noexcept { return 0; }

  /// The questions that the body has asked so far.
  [[nodiscard]] const rank_questions& questions() const noexcept { return *asked_; }
  [[nodiscard]] const std::shared_ptr<rank_questions>& shared_questions() const noexcept { return asked_; }
  /// The sizes of the collectives that it has called so far.
  [[nodiscard]] const call_sizes& sizes() const noexcept { return *sizes_; }

 private:
  [[nodiscard]] rehearsal::group asking(rehearsal::group made, const call_sizes::alike_groups& which) const;
  [[nodiscard]] rehearsal::group made_of(std::span<const int> members, where at) const;

  int number_;
  int size_;
  group_traits promises_;
  std::shared_ptr<rank_questions> asked_ = std::make_shared<rank_questions>();
  std::shared_ptr<call_sizes> sizes_ = std::make_shared<call_sizes>();
  std::shared_ptr<stream_clock> clock_ = std::make_shared<stream_clock>(stream_kind::communication, 1);
  std::vector<int> all_ranks_;
};

}  // namespace rehearsal
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/rehearsal.ipp"  // IWYU pragma: export
#endif
