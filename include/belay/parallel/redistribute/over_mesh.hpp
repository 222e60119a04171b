// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The way of a tensor over a mesh from one list of placements to another: box by box, one collective an axis.
// IWYU pragma: private, include "belay/parallel/redistribute.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/box.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/parameter_shape.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/parallel/redistribute/steps.hpp"
#include "belay/parallel/sharded.hpp"

namespace belay::inline BELAY_ABI {

// Promises that redistributions need of a communicator, where it lacks them.
inline constexpr const char* rank_order_promised =
    "a partial sum becomes the same bits whether it is replicated or sharded: take a communicator with "
    "sums_in_rank_order, as belay::host and belay::mpi have";
inline constexpr const char* varying_counts_promised =
    "the parts of a sharded tensor may differ in size: take a communicator with has_varying_counts, as belay::host and "
    "belay::mpi have";

/// One step for one rank: which box it has before and after, and what its peers have.
class step_boxes {
 public:
  template <class Mesh>
  step_boxes(const redistribution_step& step, const placement_list& before, const parameter_shape& shape,
             const Mesh& mesh)
      : place_(place_along(mesh.shape(), mesh.layout_coordinate(), step.over)), dimension_(step.dimension) {
    placement_list uncut = step.what == redistribution_step::move_type::gather ? step.after : before;
    if (step.what == redistribution_step::move_type::exchange) uncut.remove(step.over);
    whole_ = belay::local_box(uncut.entries(), shape.extents(), mesh.shape(), mesh.layout_coordinate());
  }

  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(place_.count); }
  [[nodiscard]] std::size_t rank() const noexcept { return static_cast<std::size_t>(place_.number); }
  /// The box that all ranks of the step's axis have together.
  [[nodiscard]] const tensor_box& whole() const noexcept { return whole_; }
  [[nodiscard]] tensor_box part(std::size_t rank) const { return part(rank, dimension_); }
  /// The box of rank `rank` where dimension `dimension` is cut.
  [[nodiscard]] tensor_box part(std::size_t rank, std::size_t dimension) const {
    tensor_box out = whole_;
    box_side& side = out.sides[dimension];
    const local_part mine = even_part(side.count(), ranks(), rank);
    side = {side.first + mine.first, side.first + mine.first + mine.count};
    return out;
  }
  /// Whether the parts lie one after the other in the whole.
  [[nodiscard]] bool contiguous() const noexcept {
    std::size_t rows = 1;
    for (std::size_t d = 0; d < dimension_; ++d) rows *= whole_.sides[d].count();
    return rows <= 1;
  }
  [[nodiscard]] std::vector<std::size_t> counts() const {
    std::vector<std::size_t> out;
    for (std::size_t r = 0; r < ranks(); ++r) out.push_back(part(r).elements());
    return out;
  }

 private:
  axis_place place_;
  std::size_t dimension_;
  tensor_box whole_;
};

/// Elements of memory beside its own that `redistribute<To>` of `from` needs.
template <placement To, class T, class From, tensor_mesh Mesh>
[[nodiscard]] std::size_t redistribution_elements(const sharded<T, From, Mesh>& from) {
  constexpr const redistribution_steps& steps = steps_between<From, To>;
  std::size_t largest = 0, uses = 0;
  placement_list before(entries_of<From>);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    using move_type = redistribution_step::move_type;
    if (steps[i].what != move_type::reduce) {
      const step_boxes boxes(steps[i], before, from.shape(), from.mesh());
      const bool gathers = steps[i].what == move_type::gather;
      if (boxes.ranks() > 1 && steps[i].what == move_type::exchange) {
        largest = greater_of(
            {largest, boxes.part(boxes.rank()).elements(), boxes.part(boxes.rank(), steps[i].into).elements()});
        uses = 2;
      } else if (boxes.ranks() > 1 && (gathers || !boxes.contiguous())) {
        largest = greater_of(largest, boxes.whole().elements());
        uses += gathers && !boxes.contiguous() ? 2U : 1U;
      }
    }
    before = steps[i].after;
  }
  return largest * lesser_of<std::size_t>(uses, 2);
}

/// Whether the groups of a mesh move nothing.
template <class Mesh>
[[nodiscard]] constexpr bool is_rehearsed_mesh([[maybe_unused]] const Mesh& mesh) {
  if constexpr (tells_traits<typename Mesh::group_type>)
    return is_rehearsed(mesh.world());
  else
    return moves_nothing<typename Mesh::group_type>;
}

/// Takes the steps, in the tensor's memory and the storage.
template <class From, class To, class T, class Mesh>
class mesh_redistribution {
 public:
  using group_type = typename Mesh::group_type;

  mesh_redistribution(const sharded<T, From, Mesh>& from, std::span<T> storage, where at) noexcept
      : mesh_(from.mesh()),
        shape_(from.shape()),
        now_(from.local()),
        storage_(storage),
        at_(at),
        moves_(!is_rehearsed_mesh(from.mesh())) {}

  /// Where the result lies.
  [[nodiscard]] std::span<T> run() {
    [&]<std::size_t... Index>(std::index_sequence<Index...>) { (take<Index>(), ...); }
    (std::make_index_sequence<steps_between<From, To>.size()>{});
    return now_;
  }

 private:
  using move_type = redistribution_step::move_type;

  template <std::size_t Index>
  void take() {
    constexpr const redistribution_steps& steps = steps_between<From, To>;
    constexpr redistribution_step step = steps[Index];
    constexpr placement_list before =
        Index == 0 ? placement_list(entries_of<From>) : steps[Index == 0 ? 0 : Index - 1].after;
    const step_boxes boxes(step, before, shape_, mesh_);
    if (boxes.ranks() == 1) return;
    if constexpr (step.what == move_type::slice)
      keep(boxes, boxes.part(boxes.rank()));
    else if constexpr (step.what == move_type::gather)
      gather(mesh_.group(step.over, at_), boxes);
    else if constexpr (step.what == move_type::exchange)
      exchange(mesh_.group(step.over, at_), boxes, step.into);
    else if constexpr (step.what == move_type::reduce)
      mesh_.group(step.over, at_).all_reduce(now_, operation_over<step.over>(From{}), at_);
    else
      scatter(mesh_.group(step.over, at_), boxes, operation_over<step.over>(From{}));
  }

  void keep(const step_boxes& boxes, const tensor_box& mine) {
    if (boxes.contiguous()) {
      const local_part own = own_of(boxes.counts(), boxes);
      now_ = now_.subspan(own.first, own.count);
      return;
    }
    const std::span<T> to = free(mine.elements());
    if (moves_) copy_common(boxes.whole(), now_.data(), mine, to.data());
    now_ = to;
  }
  void gather(const group_type& group, const step_boxes& boxes) {
    const std::vector<std::size_t> counts = boxes.counts();
    const local_part own = own_of(counts, boxes);
    const std::span<T> staged = free(boxes.whole().elements());
    if (moves_) std::copy_n(now_.data(), own.count, staged.data() + own.first);
    group.all_gather_v(staged, std::span<const std::size_t>(counts), at_);
    now_ = staged;
    if (boxes.contiguous()) return;
    const std::span<T> to = free(staged.size());
    if (moves_)
      each_part(boxes, [&](const tensor_box& part, std::size_t first) {
        copy_common(part, staged.data() + first, boxes.whole(), to.data());
      });
    now_ = to;
  }
  // Each rank sends the others what their boxes have of its own.
  void exchange(const group_type& group, const step_boxes& boxes, std::size_t into) {
    const tensor_box had = boxes.part(boxes.rank()), gets = boxes.part(boxes.rank(), into);
    std::vector<tensor_box> to, from;
    std::vector<std::size_t> sent, received;
    for (std::size_t r = 0; r < boxes.ranks(); ++r) {
      to.push_back(intersection(had, boxes.part(r, into)));
      from.push_back(intersection(boxes.part(r), gets));
      sent.push_back(to.back().elements());
      received.push_back(from.back().elements());
    }
    const std::span<T> packed = free(had.elements());
    if (moves_)
      for (std::size_t r = 0, first = 0; r < to.size(); first += sent[r++])
        copy_common(had, now_.data(), to[r], packed.data() + first);
    now_ = packed;
    const std::span<T> arrived = free(gets.elements());
    group.all_to_all_v(std::span<const T>(packed), std::span<const std::size_t>(sent), arrived,
                       std::span<const std::size_t>(received), at_);
    now_ = arrived;
    const std::span<T> unpacked = free(gets.elements());
    if (moves_)
      for (std::size_t r = 0, first = 0; r < from.size(); first += received[r++])
        copy_common(from[r], arrived.data() + first, gets, unpacked.data());
    now_ = unpacked;
  }
  template <class Operation>
  void scatter(const group_type& group, const step_boxes& boxes, Operation op) {
    const std::vector<std::size_t> counts = boxes.counts();
    if (!boxes.contiguous()) {  // part after part
      const std::span<T> staged = free(boxes.whole().elements());
      if (moves_)
        each_part(boxes, [&](const tensor_box& part, std::size_t first) {
          copy_common(boxes.whole(), now_.data(), part, staged.data() + first);
        });
      now_ = staged;
    }
    group.reduce_scatter_v(now_, std::span<const std::size_t>(counts), op, at_);
    const local_part own = own_of(counts, boxes);
    now_ = now_.subspan(own.first, own.count);
  }

  [[nodiscard]] static local_part own_of(const std::vector<std::size_t>& counts, const step_boxes& boxes) noexcept {
    return shard_counts(counts).part(boxes.rank());
  }
  template <class Visit>
  static void each_part(const step_boxes& boxes, const Visit& visit) {
    std::size_t first = 0;
    for (std::size_t r = 0; r < boxes.ranks(); ++r) {
      const tensor_box part = boxes.part(r);
      visit(part, first);
      first += part.elements();
    }
  }
  // Of the two ends of the storage the one in which the tensor does not lie now.
  [[nodiscard]] std::span<T> free(std::size_t count) const noexcept {
    const std::span<T> low = storage_.first(count);
    const bool taken = !now_.empty() && !low.empty() && now_.data() < low.data() + low.size() &&
                       low.data() < now_.data() + now_.size();
    return taken ? storage_.last(count) : low;
  }

  const Mesh& mesh_;
  parameter_shape shape_;
  std::span<T> now_, storage_;
  where at_;
  bool moves_;  // else nothing is touched
};

/// True, or it does not compile and says why the way from one placement to another is none.
template <class T, placement From, placement To, class Group>
constexpr bool check_redistribution_over_mesh() {
  using move_type = redistribution_step::move_type;
  static_assert(keeps_partials<From, To>(),
                "nothing can be redistributed to partial: a partial is made by computing one operand on every rank");
  constexpr const redistribution_steps& steps = steps_between<From, To>;
  static_assert(!(steps.has(move_type::reduce) || steps.has(move_type::reduce_scatter)) ||
                    orders_do_not_matter<T, From>() || sums_in_rank_order<Group>,
                "a partial sum becomes the same bits whether it is replicated or sharded: take a communicator with "
                "sums_in_rank_order, as belay::host and belay::mpi have");
  constexpr bool varies =
      steps.has(move_type::gather) || steps.has(move_type::reduce_scatter) || steps.has(move_type::exchange);
  static_assert(!varies || has_varying_counts<Group>,
                "the parts of a sharded tensor may differ in size: take a communicator with has_varying_counts, as "
                "belay::host and belay::mpi have");
  return true;
}

/// Asks the groups of a mesh, which promise alike, of what `check_redistribution_over_mesh` asks their type. Throws
/// usage_error.
template <class T, placement From, placement To, class Mesh>
void expect_redistribution_over_mesh([[maybe_unused]] const Mesh& mesh, [[maybe_unused]] where at) {
  if constexpr (tells_traits<typename Mesh::group_type>) {
    using move_type = redistribution_step::move_type;
    constexpr const redistribution_steps& steps = steps_between<From, To>;
    if constexpr ((steps.has(move_type::reduce) || steps.has(move_type::reduce_scatter)) &&
                  !orders_do_not_matter<T, From>())
      expect_promise(mesh.world(), &group_traits::sums_in_rank_order, rank_order_promised, at);
    if constexpr (steps.has(move_type::gather) || steps.has(move_type::reduce_scatter) ||
                  steps.has(move_type::exchange))
      expect_promise(mesh.world(), &group_traits::has_varying_counts, varying_counts_promised, at);
  }
}

/// The tensor of `from` with placement `To`. Per axis: partial to replicate all_reduce, partial to shard
/// reduce_scatter_v, shard to replicate all_gather_v, shard of one dimension to shard of another all_to_all_v of what
/// the boxes have in common, replicate to shard the local slice. `storage` has as many elements as
/// `redistribution_elements<To>(from)` says, and does not overlap the tensor's memory; the result lies in one of the
/// two. Collective over the groups of the axes that change, whose errors it throws.
template <class To, class T, class From, tensor_mesh Mesh>
requires placement<To>
[[nodiscard]] sharded<T, To, Mesh> redistribute(sharded<T, From, Mesh>&& from, std::span<T> storage,
                                                where at = where::current()) {
  static_assert(check_placement<To>());
  static_assert(check_redistribution_over_mesh<T, From, To, typename Mesh::group_type>());
  expect_redistribution_over_mesh<T, From, To>(from.mesh(), at);
  const std::size_t needed = redistribution_elements<To>(from);
  if (storage.size() < needed)
    throw usage_error("this redistribution needs storage for " + std::to_string(needed) + " elements, was given " +
                          std::to_string(storage.size()),
                      at);
  const std::span<T> local = mesh_redistribution<From, To, T, Mesh>(from, storage, at).run();
  return {from.mesh(), from.shape(), local, at};
}
/// The tensor of `from` with placement `To`, in its own memory, where no step needs storage; else it throws
/// usage_error. Collective over the groups of the axes that change, whose errors it throws.
template <class To, class T, class From, tensor_mesh Mesh>
requires placement<To>
[[nodiscard]] sharded<T, To, Mesh> redistribute(sharded<T, From, Mesh>&& from, where at = where::current()) {
  return redistribute<To>(std::move(from), std::span<T>{}, at);
}

/// A redistribution consumes its source: a named one must be moved.
template <class To, class T, class From, tensor_mesh Mesh, class... Rest>
void redistribute(sharded<T, From, Mesh>&, Rest&&...) {
  static_assert(!placement<To>, "redistribute uses its source up: write redistribute<To>(std::move(from))");
}

}  // namespace belay::inline BELAY_ABI
