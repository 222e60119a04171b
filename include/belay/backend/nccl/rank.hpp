// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank whose data groups are NCCL's, over the rank of another world that carries what the ranks agree on: the
// processes of one machine, or MPI across machines. NCCL's unique id travels there too.
//
//   belay::mpi::world().run([](belay::mpi::rank& control) {
//     belay::cuda::runtime_api api(local_rank);
//     const belay::cuda::device gpu(api, control.number());
//     belay::nccl::runtime_nccl nccl;
//     belay::nccl::rank rank(control, gpu, nccl);
//     belay::mesh mesh(rank, {.data = rank.size()});
//     train(mesh, gpu);  // mesh.data(): memory of the GPU; mesh.control(): of the host
//     rank.finish();
//   });
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/kit.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/nccl/channel.hpp"
#include "belay/backend/nccl/communication_memory.hpp"
#include "belay/backend/nccl/group.hpp"
#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/backend/nccl/window.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/call_guard.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/stream_watch.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// A thread that looks after a rank's communication while its host thread is elsewhere: at communicators that have met
/// an error, at the control world, at operations that do not end.
class watchdog {
 public:
  /// Calls `look()` every `period`, on its own thread, until this goes. `open()` is called first: the thread is one of
  /// the device.
  template <class Open, class Look>
  watchdog(std::chrono::steady_clock::duration period, Open open, Look look)
      : thread_([this, period, open = std::move(open), look = std::move(look)] {
          open();
          std::unique_lock lock(mutex_);
          while (!changed_.wait_for(lock, period, [this] { return ends_; })) look();
        }) {}
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;
  ~watchdog() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

/// A rank that an NCCL rank can have beside it: it makes groups of any members, and has a watch for streams' waits.
template <class C>
concept watched_rank = has_groups<C> && requires(const C& rank) {
  { rank.watch() } -> std::convertible_to<std::shared_ptr<const stream_watch>>;
};

/// Belongs to the thread that runs its body. The control rank, the device and the policy outlive it. A world of one
/// rank makes nothing of NCCL.
template <watched_rank Control, cuda::device_api Api, nccl_api N, sums Sums = sums::fixed_order>
class rank {
 public:
  using control_type = typename Control::group_type;
  using group_type = nccl::group<Api, N, Sums, control_type>;

  /// Collective over all ranks. Throws backend_error, on all ranks alike where the versions of NCCL do not do, and
  /// comm_error where it takes longer than the control world waits for peers.
  rank(Control& control, const cuda::device<Api>& on, N& nccl, const rank_options& options = {},
       where at = where::current())
      : control_(&control),
        on_(&on),
        lib_(nccl, control.number()),
        before_(measured(at)),
        channel_(std::make_shared<channel<Api, N>>(on, lib_, control.watch(), options.workspace_for(0), at)) {
    if (size() == 1) {
      world_.emplace(channel_, nullptr, control.world(), limit());
      return;
    }
    versions_ = agreed_versions(at);
    channel_->made().init(size(), shared_id(at), at);
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    world_.emplace(made_group(all, 0, number(), control.world(), at));
    watchdog_.emplace(
        options.watch_period, [&on] { on.open_and_note(); }, [channel = channel_.get()] { channel->look(); });
  }
  rank(const rank&) = delete;
  rank& operator=(const rank&) = delete;
  /// Aborts what `finish` has not ended.
  ~rank() {
    watchdog_.reset();
    channel_->cut();
  }

  /// This rank's number in the world, from 0.
  [[nodiscard]] int number() const noexcept { return control_->number(); }
  [[nodiscard]] int size() const noexcept { return control_->size(); }

  /// All ranks, in order, with memory of the device.
  [[nodiscard]] const group_type& world() const noexcept { return *world_; }
  /// All ranks, in order, with memory of the host.
  [[nodiscard]] const control_type& control() const noexcept { return control_->world(); }

  /// A group of `members`: ranks of the world in the order they shall have, this one among them. Collective over the
  /// world: all ranks make a group at the same time, of which a rank is in one, and those that are in none give
  /// themselves. Throws usage_error on all ranks where members disagree.
  [[nodiscard]] group_type group(std::span<const int> members, where at = where::current()) {
    channel_->guard().expect_usable("making a group", at);
    const call_guard::scoped_entry mine(channel_->guard(), "making a group", at);
    std::vector<int> sorted(members.begin(), members.end());
    std::sort(sorted.begin(), sorted.end());
    check_members(sorted, size(), number(), at);
    if (size() == 1) return *world_;
    const int colour = agreed_colour(members, sorted.front(), at);
    control_type twin = control_->group(members, at);
    if (members.size() == 1) {
      if (colour >= 0) static_cast<void>(split(-1, 0, at));
      return group_type(channel_, nullptr, std::move(twin), limit());
    }
    const auto place = std::find(members.begin(), members.end(), number()) - members.begin();
    return made_group(members, colour, static_cast<int>(place), std::move(twin), at);
  }

  /// The group of a mesh of that shape: the first to ask makes it, and meshes of one shape share it. Collective over
  /// the world, as `group`.
  [[nodiscard]] group_type group_along(std::span<const int> members, const axes& shape, axis which,
                                       where at = where::current()) {
    for (const made_along& each : along_)
      if (each.shape == shape && each.which == which) return each.group;
    along_.push_back({shape, which, group(members, at)});
    return along_.back().group;
  }
  /// Makes the groups of `recorded`, which a rehearsal has asked for, in the order of its meshes and of axes. What they
  /// take of the device has been taken then. Collective over the world.
  void make_recorded_groups(const mesh_record& recorded, where at = where::current()) {
    for (const auto& [shape, asked] : recorded.entries()) static_cast<void>(belay::mesh(*this, shape, asked, at));
    const std::size_t left = measured(at).free;
    communication_ = before_.free - lesser_of(before_.free, left);
  }

  /// Symmetric memory of `of`, at least `bytes`, in whole pages. Collective over the world: all ranks make windows of
  /// their groups at the same time, and the ranks of a group give the same bytes. Reach is what all ranks of the group
  /// have: none where one's NCCL has no load/store team, or is another than the one compiled against. Throws
  /// usage_error on all ranks where bytes differ, and backend_error.
  [[nodiscard]] symmetric_window<Api, N> make_window(const group_type& of, std::size_t bytes,
                                                     where at = where::current()) {
    channel_->guard().expect_usable("making a window", at);
    const std::size_t whole = window_bytes(lib_.api(), bytes);
    const std::vector<std::uint64_t> sizes = told_by_all(whole, at);
    for (const int member : of.members())
      if (sizes[static_cast<std::size_t>(member)] != whole)
        throw usage_error("a window of " + std::to_string(whole) + " bytes, of which rank " + std::to_string(member) +
                              " makes one of " + std::to_string(sizes[static_cast<std::size_t>(member)]) +
                              ": the ranks of a group give the same bytes",
                          at);
    if (of.alone()) {
      symmetric_window<Api, N> made(channel_, whole, at);
      static_cast<void>(told_by_all(1, at));
      return made;
    }
    of.barrier(at);  // NCCL registers nothing before a first collective
    try {
      symmetric_window<Api, N> made(channel_, of.communicator(), whole, at);
      const load_store_team team = versions_ ? made.find_team(at) : load_store_team{};
      const std::vector<std::uint64_t> teams = told_by_all(static_cast<std::uint64_t>(team.ranks), at);
      std::uint64_t reach = teams[static_cast<std::size_t>(number())];
      for (const int member : of.members()) reach = lesser_of(reach, teams[static_cast<std::size_t>(member)]);
      if (reach > 0) made.reach_out(team, at);
      return made;
    } catch (const backend_error& problem) {
      channel_->fail(problem);
      throw;
    }
  }

  /// Its device, for memory, streams and kits.
  [[nodiscard]] const cuda::device<Api>& gpu() const noexcept { return *on_; }
  /// Memory of a tier, and a kit, for the run of a body.
  using memory_type = cuda::tier_memory<Api>;
  using kit_type = cuda::kit<Api>;
  [[nodiscard]] memory_type make_memory(tier where_it_is, std::size_t bytes, where at = where::current()) const {
    return memory_type(gpu(), where_it_is, bytes, at);
  }
  [[nodiscard]] kit_type make_kit(where at = where::current()) {
    const std::size_t before = measured(at).free;
    kit_type made(gpu(), watch(), at);
    products_ += before - lesser_of(before, measured(at).free);
    return made;
  }
  /// The bytes that its device has left. Throws backend_error.
  [[nodiscard]] std::size_t available_device_memory(where at = where::current()) const { return measured(at).free; }
  /// Bytes that the rank has taken of its device beside memory that was asked for, as measured.
  [[nodiscard]] device_usage usage() const noexcept {
    return {before_.total, before_.total - before_.free, communication_, products_};
  }

  /// Started communications of this rank whose handle was lost.
  [[nodiscard]] std::uint64_t abandoned() const noexcept { return channel_->abandoned(); }
  /// For the streams of this rank: their waits end at the world's timeout, and when it fails.
  [[nodiscard]] std::shared_ptr<const stream_watch> watch() const { return control_->watch(); }

  /// Whether peers' windows may be loaded and stored: not where a rank has loaded another NCCL than it was compiled
  /// with.
  [[nodiscard]] bool versions_agree() const noexcept { return versions_; }

  /// Waits for what was started, and ends the communicators; collective over the world. Windows and graphs have ended
  /// before. Throws what a wait throws.
  void finish(where at = where::current()) {
    if (channel_->windows() > 0)
      throw usage_error("finish: " + std::to_string(channel_->windows()) +
                            " windows of the rank are left; they end before its communicators",
                        at);
    if (channel_->graphs() > 0)
      throw usage_error("finish: " + std::to_string(channel_->graphs()) +
                            " graphs with operations of the rank are left; they end before its communicators, which "
                            "NCCL would wait for",
                        at);
    channel_->drain(at);
    if (size() > 1) {
      control().barrier(at);
      watchdog_.reset();
      channel_->made().destroy(at);
    }
    channel_->guard().end();
  }

 private:
  struct made_along {
    axes shape;
    axis which;
    group_type group;
  };

  [[nodiscard]] cuda::device_memory_info measured(where at) const {
    cuda::device_memory_info room;
    gpu().expect(gpu().api().memory_info(room), "memory_info", 0, at);
    return room;
  }
  [[nodiscard]] std::chrono::steady_clock::duration limit() const { return channel_->failure().watch().limit(); }

  [[nodiscard]] std::vector<std::uint64_t> told_by_all(std::uint64_t mine, where at) const {
    std::vector<std::uint64_t> all(static_cast<std::size_t>(size()));
    control().all_gather(std::span<const std::uint64_t>(&mine, 1), std::span(all), at);
    return all;
  }
  // Each rank tells what it has loaded: all throw where one is too old or differs from rank 0's.
  [[nodiscard]] bool agreed_versions(where at) const {
    int loaded = 0;
    lib_.expect(lib_.api().version(loaded), "version", 0, at);
    const int mine[] = {loaded, lib_.api().compiled_version()};
    std::vector<int> all(2 * static_cast<std::size_t>(size()));
    control().all_gather(std::span<const int>(mine), std::span(all), at);
    bool same = true;
    for (std::size_t r = 0; r < all.size() / 2; ++r) {
      const int there = all[2 * r];
      if (there < least_version)
        throw backend_error({"version", static_cast<int>(r), 0,
                             "the NCCL that is loaded is " + version_text(there) + "; Belay needs " +
                                 version_text(least_version) + " or later: install a newer libnccl.so.2",
                             at});
      if (there != all[0])
        throw backend_error({"version", static_cast<int>(r), 0,
                             "the NCCL that is loaded is " + version_text(there) + ", rank 0's is " +
                                 version_text(all[0]) + ": all ranks of a world load the same",
                             at});
      same = same && there == all[2 * r + 1];
    }
    return same;
  }
  [[nodiscard]] unique_id shared_id(where at) const {
    unique_id id{};
    if (number() == 0) lib_.expect(lib_.api().make_id(id), "make_id", 0, at);
    control().broadcast(std::span<std::byte>(id), 0, at);
    return id;
  }

  // The lowest rank of the group, or -1 where no rank makes a group of several.
  [[nodiscard]] int agreed_colour(std::span<const int> members, int lowest, where at) const {
    fnv1a hash;
    for (const int member : members) hash.add(static_cast<std::uint64_t>(member));
    const std::uint64_t mine[] = {static_cast<std::uint64_t>(lowest), members.size(), hash.value()};
    std::vector<std::uint64_t> all(3 * static_cast<std::size_t>(size()));
    control().all_gather(std::span<const std::uint64_t>(mine), std::span(all), at);
    bool several = false;
    for (std::size_t r = 0; r < all.size(); r += 3) {
      std::uint64_t alike = 0;
      for (std::size_t q = 0; q < all.size(); q += 3)
        if (std::equal(&all[r], &all[r] + 3, &all[q])) ++alike;
      if (alike != all[r + 1])
        throw usage_error(
            "rank " + std::to_string(r / 3) + " makes a group of " + std::to_string(all[r + 1]) + " ranks, of which " +
                std::to_string(alike) +
                " make the same now: groups over NCCL are made by all ranks of the world at the same time",
            at);
      several = several || all[r + 1] > 1;
    }
    return several ? lowest : -1;
  }
  [[nodiscard]] typename N::communicator_type split(int colour, int key, where at) {
    channel_->expect_alive({operation::none, 0, 0, 0, at});
    try {
      return channel_->made().split(colour, key, at);
    } catch (const backend_error& problem) {
      channel_->fail(problem);
      throw;
    }
  }
  [[nodiscard]] group_type made_group(std::span<const int> members, int colour, int key, control_type twin, where at) {
    auto state = std::make_shared<group_state<N>>();
    state->on = split(colour, key, at);
    state->members.assign(members.begin(), members.end());
    state->rank = key;
    state->number = groups_++;
    return group_type(channel_, std::move(state), std::move(twin), limit());
  }

  Control* control_;
  const cuda::device<Api>* on_;
  library<N> lib_;
  cuda::device_memory_info before_;
  std::uint64_t communication_ = 0, products_ = 0;
  std::shared_ptr<channel<Api, N>> channel_;
  std::optional<group_type> world_;
  std::optional<watchdog> watchdog_;
  std::vector<made_along> along_;
  std::uint32_t groups_ = 0;
  bool versions_ = true;
};

template <class Control, class Api, class N>
rank(Control&, const cuda::device<Api>&, N&) -> rank<Control, Api, N>;
template <class Control, class Api, class N>
rank(Control&, const cuda::device<Api>&, N&, const rank_options&) -> rank<Control, Api, N>;

}  // namespace belay::inline BELAY_ABI::nccl
