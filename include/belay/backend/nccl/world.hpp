// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of ranks that have a device each and communicate over NCCL. The world beside it is what they are started by
// and agree over: threads of this process, processes of this machine, or MPI across machines.
//
//   belay::cuda::runtime_api api;
//   belay::nccl::runtime_nccl nccl;
//   belay::launch(belay::nccl::world(api, nccl, belay::host::world(4)), train);
#pragma once

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/kit.hpp"
#include "belay/backend/cuda/memory.hpp"
#include "belay/backend/nccl/communication_memory.hpp"
#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/backend/nccl/operations.hpp"
#include "belay/backend/nccl/rank.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// `run(body)` calls `body(rank&)` for each rank, as `Control` does, with the rank's device opened, and ends its
/// communicators. The Api outlives it, and it all that bodies make of their ranks' devices. `N` is copied for each
/// rank.
template <cuda::device_api Api, nccl_api N, class Control, sums Sums = sums::fixed_order>
class world {
 public:
  using api_type = Api;
  using memory_type = cuda::tier_memory<Api>;
  using kit_type = cuda::kit<Api>;
  /// Each its own: a rank's memory is not addressed by others.
  static constexpr bool ranks_have_devices = true;
  /// Whether gradients are added in rank order, which plans say.
  static constexpr bool sums_in_rank_order = Sums == sums::fixed_order;
  /// Of this process.
  static constexpr bool ranks_are_threads = requires { requires std::remove_reference_t<Control>::ranks_are_threads; };

  /// Where ranks are threads, throws backend_error without a driver and input_error where devices are fewer; processes
  /// find that out in `run`, all alike, for who has used a device cannot be copied.
  world(Api& api, const N& nccl, Control control, const world_options& options = {}, where at = where::current())
      : api_(&api),
        control_(std::forward<Control>(control)),
        options_(options),
        state_(std::make_shared<world_state>()) {
    const auto ranks = static_cast<std::size_t>(control_.size());
    if constexpr (ranks_are_threads) {
      const int devices = cuda::device_count(api, 0, at);
      if (devices < control_.size())
        refuse(devices, control_.size(),
               "; ranks that share one are those of belay::cuda::world(api, belay::host::world(ranks))", at);
    }
    state_->devices.resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) state_->policies.push_back(nccl);
  }
  /// A world with NCCL's own sums where `Sums` is `sums::any`: less traffic, and bits that other meshes, stages and
  /// machines do not have. Where ranks are threads, throws backend_error without a driver and input_error where devices
  /// are fewer.
  world(Api& api, const N& nccl, Control control, adds<Sums>, const world_options& options = {},
        where at = where::current())
      : world(api, nccl, std::forward<Control>(control), options, at) {}

  /// Ranks.
  [[nodiscard]] int size() const noexcept { return control_.size(); }
  /// The promises of its groups, for a rehearsal.
  [[nodiscard]] static constexpr group_traits promises() noexcept {
    group_traits out;
    out.sums_in_rank_order = sums_in_rank_order;
    out.sums_alike = out.has_varying_counts = out.has_local_memory = true;
    return out;
  }
  /// Runs the body on every rank, as `Control` does. Throws what that throws: the first cause; input_error on all ranks
  /// where a machine has fewer devices than ranks.
  template <class Body>
  auto run(Body&& body, where at = where::current()) {
    const auto of_control = [&](auto& control) {
      using rank_type = rank<std::remove_reference_t<decltype(control)>, Api, N, Sums>;
      const auto number = static_cast<std::size_t>(control.number());
      std::optional<cuda::device<Api>>& gpu = state_->devices[number];
      gpu.emplace(*api_, control.number(), device_of(control, at), at);
      rank_options how = options_.ranks;
      if (state_->workspace) how.workspace_bytes = state_->workspace;
      rank_type self(control, *gpu, state_->policies[number], how, at);
      if constexpr (std::is_void_v<decltype(body(self))>) {
        body(self);
        self.finish(at);
      } else {
        auto result = body(self);
        self.finish(at);
        return result;
      }
    };
    if constexpr (requires { control_.run(of_control, at); })
      return control_.run(of_control, at);
    else
      return control_.run(of_control);
  }

  /// Bytes that a rank's kit uses beside the operands of its products, and for its other kernels.
  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return kit_type::workspace_of(*api_); }
  /// Bytes of its device that a rank communicates with, for a plan: the groups that a rehearsal has recorded are made
  /// at launch, and the workspace is that of the largest reduction. An estimate; the true number is measured there.
  [[nodiscard]] std::size_t communication_bytes(const mesh_record& groups,
                                                const rehearsal::call_sizes& calls = {}) const noexcept {
    return options_.bytes_of_rank(size(), groups, calls, Sums);
  }
  /// Ranks of later runs have the workspace that those collectives need.
  void make_room_for(const rehearsal::call_sizes& planned, where = where::current()) const {
    state_->workspace = workspace_for(planned);
  }

 private:
  [[nodiscard]] std::size_t workspace_for(const rehearsal::call_sizes& planned) const noexcept {
    return options_.workspace_for(size(), planned, Sums);
  }

  struct world_state {
    std::deque<std::optional<cuda::device<Api>>> devices;  // what bodies leave behind ends after them
    std::deque<N> policies;
    std::optional<std::size_t> workspace;  // of a plan
  };

  [[noreturn]] static void refuse(int devices, int ranks, const std::string& how, where at) {
    throw input_error(std::to_string(ranks) + " ranks over NCCL on a machine of which a process sees " +
                          std::to_string(devices) + (devices == 1 ? " device" : " devices") +
                          ": each takes one of its own" + how,
                      at);
  }
  // Of a machine's ranks the first takes its first device.
  template <class ControlRank>
  [[nodiscard]] cuda::device_number device_of(ControlRank& control, where at) const {
    if constexpr (ranks_are_threads) return {control.number()};
    const int devices = cuda::device_count(*api_, control.number(), at);
    std::array<char, 256> name{};
    static_cast<void>(::gethostname(name.data(), name.size() - 1));
    fnv1a machine;
    const std::uint64_t mine[] = {machine.add_text(name.data()).value(), static_cast<std::uint64_t>(devices)};
    std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(size()));
    control.world().all_gather(std::span<const std::uint64_t>(mine), std::span(all), at);
    const auto ranks_like = [&](std::size_t rank, std::size_t end) {
      int count = 0;
      for (std::size_t other = 0; other < end; ++other) count += all[2 * other] == all[2 * rank] ? 1 : 0;
      return count;
    };
    const std::size_t ranks = all.size() / 2;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const int there = ranks_like(rank, ranks), seen = static_cast<int>(all[2 * rank + 1]);
      if (seen >= there) continue;
      std::size_t without = 0;
      while (all[2 * without] != all[2 * rank] || ranks_like(without, without) < seen) ++without;
      refuse(seen, there,
             ", by its number among them, and rank " + std::to_string(without) +
                 " has none: take fewer ranks, or let all processes of a machine see all of its devices",
             at);
    }
    const auto own = static_cast<std::size_t>(control.number());
    return {ranks_like(own, own)};
  }

  Api* api_;
  Control control_;
  world_options options_;
  std::shared_ptr<world_state> state_;
};

// A control world that has a name, as one of MPI's must, is used where it is. (As constrained as the class: in
// templates nvcc prefers a guide of the constructor else, which copies.)
template <cuda::device_api Api, nccl_api N, class Control>
world(Api&, const N&, Control&&) -> world<Api, N, Control>;
template <cuda::device_api Api, nccl_api N, class Control>
world(Api&, const N&, Control&&, const world_options&) -> world<Api, N, Control>;
template <cuda::device_api Api, nccl_api N, class Control, sums Sums>
world(Api&, const N&, Control&&, adds<Sums>) -> world<Api, N, Control, Sums>;
template <cuda::device_api Api, nccl_api N, class Control, sums Sums>
world(Api&, const N&, Control&&, adds<Sums>, const world_options&) -> world<Api, N, Control, Sums>;

}  // namespace belay::inline BELAY_ABI::nccl
