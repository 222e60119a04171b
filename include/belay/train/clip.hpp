// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The norm of all gradients of the model, every parameter counted once, wherever its parts are held. Each sum of
// squares of a unit (a chunk, or 2^k of them in order) is written by exactly one rank into a table of the whole model.
// The table is summed over the world, where each entry is added to zeros, and folded in the model's order. So neither
// pipeline stages nor sharded optimizer state change a bit of the norm.
//
//   belay::norm_table table;
//   std::vector<belay::norm_place> places{{table.add(wte.local_size()), 0}, {table.add(head.local_size()), 0}};
//   std::vector<double> memory(table.entries());
//   belay::gradient_norm<float> norm(table, places, memory);
//   const auto length = norm(reduced, mesh.control());
//   if (length.finite()) optimizer.apply(*done, std::move(reduced), length.clip(1.0));
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/reduced.hpp"
#include "belay/parallel/bucket/replicas.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/train/norm_table.hpp"

namespace belay::inline BELAY_ABI {

/// The factor by which the optimizer multiplies gradients; `none` is 1.
class clip_factor {
 public:
  /// No clipping; the number that gradients are multiplied with.
  [[nodiscard]] static constexpr clip_factor none() noexcept { return clip_factor{1.0}; }
  [[nodiscard]] constexpr double value() const noexcept { return value_; }

 private:
  friend class gradient_norm_value;
  explicit constexpr clip_factor(double value) noexcept : value_(value) {}
  double value_;
};

/// The norm of a step's gradients, equal on all ranks.
class gradient_norm_value {
 public:
  /// A norm that was computed elsewhere.
  explicit constexpr gradient_norm_value(double value) noexcept : value_(value) {}

  /// The norm.
  [[nodiscard]] constexpr double value() const noexcept { return value_; }
  /// False where any gradient of any rank is infinite or not a number.
  [[nodiscard]] bool finite() const noexcept { return is_finite(value_); }
  /// min(1, max_norm / (norm + 1e-6)).
  [[nodiscard]] constexpr clip_factor clip(double max_norm) const noexcept {
    const double factor = max_norm / (value_ + 1e-6);
    return clip_factor{factor < 1.0 ? factor : 1.0};
  }

 private:
  double value_;
};

/// Where a parameter of the buckets is in the table: its number, and the part that is held here.
struct norm_place {
  /// The parameter's number in the table, and which part of it.
  std::size_t parameter = 0;
  std::size_t part = 0;
  norm_share share = norm_share::counted_here;  // elsewhere: by a rank along another axis that holds the same part
};

/// Computes the norm. Its memory is given, so that a step allocates nothing.
template <class T>
class gradient_norm {
 public:
  /// `places[i]` is that of parameter i of the buckets. `memory` has `table.entries()` doubles and outlives this.
  gradient_norm(norm_table table, std::vector<norm_place> places, std::span<double> memory, where at = where::current())
      : table_(std::move(table)), places_(std::move(places)), memory_(memory) {
    if (memory.size() != table_.entries())
      throw usage_error(
          "the norm needs " + std::to_string(table_.entries()) + " doubles, got " + std::to_string(memory.size()), at);
    for (const norm_place& place : places_)
      if (!table_.has(place.parameter, place.part))
        throw usage_error("no part " + std::to_string(place.part) + " of parameter " + std::to_string(place.parameter) +
                              " in the table of the norm",
                          at);
    check_places(at);
  }

  /// The norm over all ranks of `world`. Collective: every rank gives the gradients of its buckets' last reduction.
  /// Checks across ranks compare the divisors.
  template <class Group>
  [[nodiscard]] gradient_norm_value operator()(const reduced_gradients<T>& gradients, Group&& world,
                                               where at = where::current()) {
    return gradient_norm_value{kernel::square_root(squares(gradients, world, at))};
  }

  /// The sum of squares over all ranks of `world`, whose root is the norm. Collective.
  template <class Group>
  [[nodiscard]] double squares(const reduced_gradients<T>& gradients, Group&& world, where at = where::current()) {
    fill(gradients, world, nullptr, at);
    return fold_after(0);
  }
  /// The sum of squares of a model of which each rank of `stages`, a pipeline, has a part with a table of its own,
  /// summed over `plane`, the ranks that hold the same parameters. Parameters are folded in the order of the stages,
  /// with the bits of one table.
  template <class Plane, class Stages>
  [[nodiscard]] double squares(const reduced_gradients<T>& gradients, Plane&& plane, Stages&& stages, where at) {
    fill(gradients, plane, nullptr, at);
    return fold_along(stages, at);
  }
  /// The sum of squares over all ranks of a mesh, whose groups work on the gradients as `Group`. `told_by`, where it is
  /// not null, has the sums of squares of the chunks of all ranges, in place of kernels between operations.
  template <class Group>
  [[nodiscard]] double squares_over(const reduced_gradients<T>& gradients, const mesh& mesh, update_observer* told_by,
                                    where at) {
    const Group& replicas = mesh.replicas(at);
    fill(gradients, replicas, told_by, at);
    if (mesh.shape().tensor > 1) control_of(mesh.tensor(at)).all_reduce(memory_, sum, at);
    return fold_along(mesh.pipeline(at), at);
  }

  /// The norm of one parameter of the table over all its parts, at the last call.
  [[nodiscard]] double of_parameter(std::size_t number) const noexcept {
    return kernel::square_root(table_.fold(number, memory_));
  }
  [[nodiscard]] const norm_table& table() const noexcept { return table_; }

 private:
  template <class Stages>
  [[nodiscard]] double fold_along(Stages&& stages, where at) const {
    double so_far[1] = {0};
    const std::span<const std::uint64_t> holders = table_.holders();
    const std::size_t count = holders.empty() ? static_cast<std::size_t>(stages.size()) : holders.size();
    for (std::size_t stage = 0; stage < count; ++stage) {
      const int holder = static_cast<int>(holders.empty() ? stage : holders[stage] - 1);
      if (holder < 0) continue;
      if (holder == stages.rank()) so_far[0] = holders.empty() ? fold_after(so_far[0]) : fold_after(so_far[0], stage);
      if (stages.size() > 1) control_of(stages).broadcast(std::span<double>(so_far), holder, at);
    }
    return so_far[0];
  }

  // The table of all ranks of `world`.
  template <class Group>
  void fill(const reduced_gradients<T>& gradients, Group&& world, update_observer* told_by, where at) {
    static_assert(can_all_reduce<std::remove_cvref_t<Group>, double>,
                  "the norm adds a table over all ranks: give it a communicator that can all_reduce doubles, such as "
                  "mesh.control()");
    if (!gradients.latest())
      throw usage_error("the norm of gradients that were applied, or whose buckets have begun another step", at);
    if (checked(check_level::across_ranks) && !is_rehearsed(world)) {
      const std::string found = difference_of_targets(compared_, world, gradients.targets(), at);
      if (!found.empty()) throw usage_error(found, at);
    }
    for (double& entry : memory_) entry = 0;
    std::span<const double> told;
    if (told_by != nullptr) told = told_by->squares(at);
    for (const owned_range<T>& range : gradients.owned()) {
      check_place(range, at);
      const bool is_told = told_by != nullptr && range.gradient_file == nullptr;
      const std::span<const double> own = told.first(is_told ? chunks_of(range.count) : 0);
      told = told.subspan(own.size());
      if (range.share == norm_share::counted_elsewhere) continue;
      const norm_place place = places_[range.parameter];
      if (place.share == norm_share::counted_elsewhere) continue;
      const std::size_t unit = table_.unit().elements();
      double* const entries = memory_.data() + table_.first_entry(place.parameter, place.part) + range.offset / unit;
      for (std::size_t c = 0; c < own.size(); ++c) entries[c * parameter_chunk / unit] += own[c];
      if (is_told) continue;
      if constexpr (tells_traits<std::remove_cvref_t<Group>> && !works_on_device<std::remove_cvref_t<Group>>)
        if (world.traits().on_device)
          throw usage_error(
              "these gradients are memory of a device: a store takes their norm, or a belay::device_group", at);
      if constexpr (works_on_device<std::remove_cvref_t<Group>>)
        range.gradient_file == nullptr ? add_on_device(world, range, entries, at) : add_on_host(range, entries, at);
      else
        add_on_host(range, entries, at);
    }
    if (world.size() > 1) control_of(world).all_reduce(memory_, sum, at);
  }
  void add_on_host(const owned_range<T>& range, double* entries, where at) {
    const std::size_t unit = table_.unit().elements();
    if (range.gradient_file != nullptr) {
      chunk_.resize(parameter_chunk);
      range.gradient_file->begin_read(range.gradient, range.count * sizeof *range.gradient, at);
    }
    for (std::size_t first = 0; first < range.count; first += parameter_chunk) {
      double squares = 0;
      const compute_type_t<T>* gradient = range.gradient + first;
      if (range.gradient_file != nullptr) {
        range.gradient_file->get(gradient, chunk_.data(),
                                 lesser_of(parameter_chunk, range.count - first) * sizeof *gradient);
        gradient = chunk_.data();
      }
      kernel::chunk_sums_of_squares<compute_type_t<T>>{gradient, range.count - first, &squares}(0);
      entries[first / unit] += squares;
    }
  }
  // A kernel for as many chunks as have room for what they tell.
  template <class Group>
  void add_on_device(const Group& group, const owned_range<T>& range, double* entries, where at) {
    const std::size_t room = group.scratch().size() / sizeof(double), unit = table_.unit().elements();
    auto* const told = reinterpret_cast<double*>(group.scratch().data());
    squares_.resize(room);
    for (std::size_t first = 0; first < range.count; first += room * parameter_chunk) {
      const std::size_t count = lesser_of(range.count - first, room * parameter_chunk);
      const std::size_t chunks = chunks_of(count);
      group.each(chunks, kernel::chunk_sums_of_squares<compute_type_t<T>>{range.gradient + first, count, told}, at);
      group.fetch(squares_.data(), told, chunks * sizeof(double), at);
      for (std::size_t c = 0; c < chunks; ++c) entries[(first + c * parameter_chunk) / unit] += squares_[c];
    }
  }
  // The sum of squares of the table's parameters, in order, added to what those before them have.
  [[nodiscard]] double fold_after(double squares) const noexcept {
    for (std::size_t p = 0; p < table_.parameters(); ++p) squares += table_.fold(p, memory_);
    return squares;
  }
  // Of one stage's parameters alone.
  [[nodiscard]] double fold_after(double squares, std::size_t stage) const noexcept {
    for (std::size_t p = 0; p < table_.parameters(); ++p)
      if (table_.stage_of(p) == stage) squares += table_.fold(p, memory_);
    return squares;
  }

  // A parameter counts once: two places of one part would overwrite each other.
  void check_places(where at) const {
    std::vector<std::pair<std::size_t, std::size_t>> taken;
    for (const norm_place& place : places_) taken.emplace_back(place.parameter, place.part);
    std::sort(taken.begin(), taken.end());
    const auto twice = std::adjacent_find(taken.begin(), taken.end());
    if (twice != taken.end())
      throw usage_error("two parameters of the buckets stand at part " + std::to_string(twice->second) +
                            " of parameter " + std::to_string(twice->first) + " in the table of the norm",
                        at);
  }

  void check_place(const owned_range<T>& range, where at) const {
    if (range.parameter >= places_.size())
      throw usage_error("the buckets' parameter number " + std::to_string(range.parameter) +
                            " has no place in the table of the norm, which was given " + std::to_string(places_.size()),
                        at);
    const norm_place place = places_[range.parameter];
    const std::size_t elements = table_.elements(place.parameter, place.part);
    if (range.offset > elements || range.count > elements - range.offset)
      throw usage_error("the buckets' parameter number " + std::to_string(range.parameter) +
                            " has more elements than its place in the table of the norm, which has " +
                            std::to_string(elements),
                        at);
    const std::size_t unit = table_.unit().elements();
    const std::size_t end = range.offset + range.count;
    if (range.offset % unit != 0 || (end % unit != 0 && end != elements))
      throw usage_error("the buckets cut their parameter number " + std::to_string(range.parameter) +
                            " inside an entry of the norm's table, which has " + std::to_string(unit) +
                            " elements: make the buckets with table.unit()",
                        at);
  }

  norm_table table_;
  std::vector<norm_place> places_;
  std::span<double> memory_;
  rank_comparison compared_;
  std::vector<compute_type_t<T>> chunk_;  // of gradients in a file
  std::vector<double> squares_;           // of chunks of gradients on a device
};

}  // namespace belay::inline BELAY_ABI
