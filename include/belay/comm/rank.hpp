// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank of a running world, of whatever backend, or of a rehearsal: what `launch` calls a body with. One compiled
// body serves all of them.
//
//   belay::launch(belay::host::world(4), [](belay::rank& rank, auto& run) {
//     const belay::mesh mesh(rank, {.data = rank.size()});
//     ...
//   });
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/group.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/stream_arbiter.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI {

/// The interface that a backend implements so that its rank can be a `belay::rank`. Belongs to the rank's thread.
class rank_interface {
 public:
  /// Rank `number` of `size`.
  rank_interface(int number, int size) noexcept : number_(number), size_(size) {}
  virtual ~rank_interface() = default;

  /// This rank's number, where that is no question, and how many ranks the world has.
  [[nodiscard]] int unasked_rank() const noexcept { return number_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// All ranks, in order; it lives as long as the rank.
  [[nodiscard]] virtual const group& world() = 0;
  /// A group of `members`: ranks of the world in the order they shall have, this one among them. Every member makes the
  /// same groups in the same order. Throws usage_error.
  [[nodiscard]] virtual group make_group(std::span<const int> members, where at) = 0;
  /// A group along an axis of a mesh, whose ranks a rehearsal counts as a question about that axis alone.
  [[nodiscard]] virtual group make_group_along(std::span<const int> members, const axes& shape, axis which, where at) {
    static_cast<void>(shape), static_cast<void>(which);
    return make_group(members, at);
  }
  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] virtual std::uint64_t abandoned() const = 0;
  /// Where a rehearsal notes what the body asks of its rank; null in a world that runs.
  [[nodiscard]] virtual std::shared_ptr<rehearsal::rank_questions> questions() const { return nullptr; }

  // For `launch`.

  /// The bounds of waits for this rank's streams; null where there are none.
  [[nodiscard]] virtual std::shared_ptr<const stream_watch> watch() const { return nullptr; }
  /// Communication begins in the turns of `arbiter` from here on, of a rank that is a thread of this process; until
  /// `finish`, after which nothing of it is under way.
  virtual void use(std::shared_ptr<stream_arbiter> arbiter) { static_cast<void>(arbiter); }
  virtual void finish() noexcept {}
  /// Makes the groups of `meshes` before the body, where communicators take of a device; collective then. The bytes
  /// that the rank's own device has left after it; none where it has no device, or shares one. Throws backend_error.
  virtual std::optional<std::size_t> room_beside_groups(const mesh_record& meshes, where at) {
    static_cast<void>(meshes), static_cast<void>(at);
    return std::nullopt;
  }
  /// The bytes that the rank takes of its device beside what is leased; none of a rank of the host.
  [[nodiscard]] virtual std::optional<device_usage> usage() const { return std::nullopt; }

 private:
  int number_, size_;
};

/// A rank has a place in the world and groups of any members.
template <class Rank>
concept has_groups = requires(Rank& rank, std::span<const int> members, where at) {
  { rank.number() } -> std::convertible_to<int>;
  { rank.size() } -> std::convertible_to<int>;
  { rank.world() } -> std::convertible_to<typename Rank::group_type>;
  { rank.group(members, at) } -> std::convertible_to<typename Rank::group_type>;
};

/// A backend's own rank: it makes groups that `belay::group` takes.
template <class R>
concept backend_rank = has_groups<R> && backend_group<typename R::group_type>;

/// A backend's own rank behind the interface of `belay::rank`. The rank outlives it.
template <backend_rank R>
class typed_rank final : public rank_interface {
 public:
  /// Has the handle of all ranks from here on.
  explicit typed_rank(R& of) : rank_interface(layout_rank(of), of.size()), of_(&of), world_(of.world()) {}

  [[nodiscard]] const group& world() override { return world_; }
  [[nodiscard]] group make_group(std::span<const int> members, where at) override { return of_->group(members, at); }
  [[nodiscard]] group make_group_along(std::span<const int> members, const axes& shape, axis which, where at) override {
    if constexpr (requires { of_->group_along(members, shape, which, at); })
      return of_->group_along(members, shape, which, at);
    else
      return of_->group(members, at);
  }
  [[nodiscard]] std::uint64_t abandoned() const override { return of_->abandoned(); }
  [[nodiscard]] std::shared_ptr<rehearsal::rank_questions> questions() const override {
    if constexpr (requires { of_->shared_questions(); })
      return of_->shared_questions();
    else
      return nullptr;
  }

  [[nodiscard]] std::shared_ptr<const stream_watch> watch() const override {
    if constexpr (requires { of_->watch(); })
      return of_->watch();
    else
      return nullptr;
  }
  void use([[maybe_unused]] std::shared_ptr<stream_arbiter> arbiter) override {
    if constexpr (requires { of_->use(arbiter); }) of_->use(std::move(arbiter));
  }
  void finish() noexcept override {
    if constexpr (requires {
                    { of_->finish() } noexcept;
                  })
      of_->finish();
  }
  std::optional<std::size_t> room_beside_groups([[maybe_unused]] const mesh_record& meshes,
                                                [[maybe_unused]] where at) override {
    if constexpr (requires { of_->make_recorded_groups(meshes, at); }) {
      of_->make_recorded_groups(meshes, at);
      return of_->available_device_memory(at);
    } else {
      return std::nullopt;
    }
  }
  [[nodiscard]] std::optional<device_usage> usage() const override {
    if constexpr (requires { of_->usage(); })
      return of_->usage();
    else
      return std::nullopt;
  }

  /// The backend's rank.
  [[nodiscard]] R& of() const noexcept { return *of_; }

 private:
  R* of_;
  group world_;
};

/// A rank as a body has it. Belongs to the rank's thread, and to the body that the world runs.
class rank {
 public:
  using group_type = belay::group;
  using control_type = belay::group;
  using place_type = rehearsal::asked_coordinate;

  /// Of a backend's implementation.
  explicit rank(std::unique_ptr<rank_interface> of) : of_(std::move(of)), asked_(of_->questions()) {}
  /// Of a backend's rank, which outlives this.
  template <class R>
    requires(!std::same_as<R, rank> && backend_rank<R>)
  explicit rank(R& of) : rank(std::make_unique<typed_rank<R>>(of)) {}
  rank(const rank&) = delete;  // meshes point to it
  rank& operator=(const rank&) = delete;

  /// This rank's number in the world, from 0; in a rehearsal a question of the body, which `unasked_rank` is not.
  [[nodiscard]] int number() const noexcept {
    if (asked_ != nullptr) asked_->ask_number();
    return of_->unasked_rank();
  }
  [[nodiscard]] int unasked_rank() const noexcept { return of_->unasked_rank(); }
  [[nodiscard]] int size() const noexcept { return of_->size(); }
  /// Whether no byte moves, and memory is addresses without pages.
  [[nodiscard]] bool rehearsed() const noexcept { return asked_ != nullptr; }

  /// All ranks, in order.
  [[nodiscard]] const belay::group& world() const { return of_->world(); }
  /// All ranks, in order, with memory of the host.
  [[nodiscard]] const belay::group& control() const { return of_->world().control(); }
  /// A group of `members`: ranks of the world in the order they shall have, this one among them. Every member makes the
  /// same groups of the same ranks in the same order. Throws usage_error.
  [[nodiscard]] belay::group group(std::span<const int> members, where at = where::current()) const {
    return of_->make_group(members, at);
  }
  /// For `mesh`: a group along one of its axes.
  [[nodiscard]] belay::group group_along(std::span<const int> members, const axes& shape, axis which,
                                         where at = where::current()) const {
    return of_->make_group_along(members, shape, which, at);
  }
  /// For `mesh`: the rank's place in it.
  [[nodiscard]] rehearsal::asked_coordinate place(const axes& shape) const {
    return rehearsal::coordinate_asked(asked_, shape, of_->unasked_rank());
  }

  /// The groups that the body has asked of its meshes in a rehearsal; in a run, those that meshes make at once, which
  /// are the same on all ranks.
  [[nodiscard]] mesh_record& meshes() noexcept { return meshes_; }
  [[nodiscard]] const mesh_record& meshes() const noexcept { return meshes_; }
  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const { return of_->abandoned(); }

  /// For `launch`: the bounds of waits for this rank's streams, and the order of its communication; see
  /// `rank_interface`.
  [[nodiscard]] std::shared_ptr<const stream_watch> watch() const { return of_->watch(); }
  void use(std::shared_ptr<stream_arbiter> arbiter) { of_->use(std::move(arbiter)); }
  void finish() noexcept { of_->finish(); }
  [[nodiscard]] std::optional<std::size_t> room_beside_groups(where at) {
    return of_->room_beside_groups(meshes_, at);
  }
  [[nodiscard]] std::optional<device_usage> usage() const { return of_->usage(); }

  /// The backend's rank, for what it alone can do: `rank.backend<belay::host::rank>()`. Null where this rank is one of
  /// another backend, or of a rehearsal.
  template <class R>
  [[nodiscard]] R* backend() const noexcept {
    const auto* const typed = dynamic_cast<const typed_rank<R>*>(of_.get());
    return typed == nullptr ? nullptr : &typed->of();
  }

 private:
  std::unique_ptr<rank_interface> of_;
  std::shared_ptr<rehearsal::rank_questions> asked_;
  mesh_record meshes_;
};

}  // namespace belay::inline BELAY_ABI
