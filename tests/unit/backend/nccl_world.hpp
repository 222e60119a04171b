// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks as host threads over a fake NCCL, for tests of the backend: what each rank's body threw, and what is left.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/nccl/fake_nccl.hpp"

namespace nccl_test {

using device_type = belay::cuda::device<fakes::device_api>;
template <class Policy = fakes::nccl_api, belay::nccl::sums Sums = belay::nccl::sums::any>
using rank_type = belay::nccl::rank<belay::host::rank, fakes::device_api, Policy, Sums>;

/// How a rank's body ended.
struct end_of_rank {
  belay::error_kind kind = belay::error_kind::none;  // none: it returned
  std::string what, call;
  int rank = -1;  // of a backend_error
  std::size_t bytes = 0;
};

struct world_options {
  fakes::work_order order = fakes::work_order::late;
  std::uint64_t seed = 0;
  std::uint64_t device_fails_at = 0;
  fakes::nccl_options nccl = {};
  std::chrono::duration<double> timeout = std::chrono::seconds(60);
  const belay::time_source* clock = nullptr;
  std::size_t workspace = 1024;
};

struct outcome {
  std::vector<end_of_rank> ranks;
  std::vector<std::string> refusals;
  bool all_freed = false;

  [[nodiscard]] bool succeeded() const {
    bool ok = all_freed && refusals.empty();
    for (const end_of_rank& each : ranks) ok = ok && each.kind == belay::error_kind::none;
    return ok;
  }
};

/// The memory that a rank's body communicates in, where it may fail: its peers, and what it has queued, use it still.
using kept_memory = std::shared_ptr<void>;

/// `make(fabric, number)` is each rank's policy; `body(rank, device, policy)` what it does, or with a kept_memory
/// behind these, which outlives all ranks.
template <belay::nccl::sums Sums = belay::nccl::sums::any, class Make, class Body>
outcome run(int ranks, const world_options& options, const Make& make, const Body& body) {
  outcome out;
  out.ranks.resize(static_cast<std::size_t>(ranks));
  fakes::device_api gpu(
      {.order = options.order, .seed = options.seed, .fail_at = options.device_fails_at, .devices = ranks});
  fakes::nccl_fabric fabric(gpu, options.nccl);
  std::vector<std::optional<device_type>> devices(out.ranks.size());
  std::vector<kept_memory> kept(out.ranks.size());
  const belay::host::world world(ranks, {.timeout = options.timeout, .clock = options.clock});
  try {
    world.run([&](belay::host::rank& control) {
      const auto number = static_cast<std::size_t>(control.number());
      end_of_rank& end = out.ranks[number];
      try {
        auto policy = make(fabric, control.number());
        const device_type& device =
            devices[number].emplace(gpu, control.number(), belay::cuda::device_number{control.number()});
        rank_type<decltype(policy), Sums> rank(
            control, device, policy,
            {.workspace_bytes = options.workspace, .watch_period = std::chrono::milliseconds(5)});
        if constexpr (std::is_invocable_v<const Body&, decltype(rank)&, const device_type&, decltype(policy)&,
                                          kept_memory&>)
          body(rank, device, policy, kept[number]);
        else
          body(rank, device, policy);
        rank.finish();
      } catch (const belay::backend_error& problem) {
        const auto& about = problem.about();
        end = {problem.kind(), problem.what(), about.call, about.rank, about.bytes};
        throw;
      } catch (const belay::error& problem) {
        end = {problem.kind(), problem.what(), "", -1, 0};
        throw;
      }
    });
  } catch (const std::exception&) {
    // each rank has told
  }
  kept.clear();
  devices.clear();
  out.refusals = fabric.refusals();
  out.all_freed = gpu.empty() && fabric.empty();
  return out;
}
inline const auto plain = [](fakes::nccl_fabric& fabric, int) { return fakes::nccl_api(fabric); };

/// Values of the host's on the device, and back.
class bridge {
 public:
  bridge(const device_type& on, std::size_t bytes)
      : device_(on, bytes), host_(on, bytes), stream_(on, belay::stream_kind::copy) {}
  [[nodiscard]] std::span<float> floats(std::size_t first, std::size_t count) const {
    return {reinterpret_cast<float*>(device_.data()) + first, count};
  }
  void put(std::span<const float> values) {
    if (!values.empty()) std::memcpy(host_.data(), values.data(), values.size_bytes());
    stream_.copy(device_.data(), host_.data(), values.size_bytes());
    stream_.synchronize();
  }
  [[nodiscard]] std::vector<float> get(std::size_t count) {
    stream_.copy(host_.data(), device_.data(), count * sizeof(float));
    stream_.synchronize();
    std::vector<float> out(count);
    if (count > 0) std::memcpy(out.data(), host_.data(), count * sizeof(float));
    return out;
  }
  [[nodiscard]] belay::cuda::stream<fakes::device_api>& stream() noexcept { return stream_; }

 private:
  belay::cuda::device_memory<fakes::device_api> device_;
  belay::cuda::pinned_memory<fakes::device_api> host_;
  belay::cuda::stream<fakes::device_api> stream_;
};

/// One that outlives all ranks.
[[nodiscard]] inline bridge& kept_bridge(kept_memory& kept, const device_type& on, std::size_t bytes) {
  const auto made = std::make_shared<bridge>(on, bytes);
  kept = made;
  return *made;
}

}  // namespace nccl_test
