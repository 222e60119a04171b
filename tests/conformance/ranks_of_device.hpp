// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that share a device, as the conformance suites see a backend. Buffers of the suites are memory of the host:
// every operation is given copies in that of the device. Worlds of more than three ranks are not run.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "conformance/ends.hpp"

namespace conformance {

// The device's side of buffers of the host, for one operation at a time.
template <class Api>
class device_side {
 public:
  explicit device_side(const belay::cuda::device<Api>& gpu)
      : gpu_(&gpu), copies_(gpu, belay::stream_kind::copy), memory_(gpu, 0), pinned_() {}

  void begin() { ranges_.clear(); }
  void add(const void* first, std::size_t bytes) {
    if (bytes > 0) ranges_.push_back({static_cast<const std::byte*>(first), bytes, 0});
  }
  void upload() {
    std::sort(ranges_.begin(), ranges_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<range> merged;
    for (const range& one : ranges_) {
      if (merged.empty() || merged.back().first + merged.back().bytes < one.first)
        merged.push_back(one);
      else
        merged.back().bytes =
            std::max(merged.back().bytes, static_cast<std::size_t>(one.first + one.bytes - merged.back().first));
    }
    ranges_ = merged;
    std::size_t end = 0;
    for (range& one : ranges_) {
      one.offset = (end + 63) / 64 * 64 + reinterpret_cast<std::uintptr_t>(one.first) % 64;
      end = one.offset + one.bytes;
    }
    if (end > memory_.size_bytes()) {
      memory_ = belay::cuda::device_memory<Api>(*gpu_, std::max<std::size_t>(end, 1 << 15));
      pinned_ = belay::cuda::pinned_memory<Api>(*gpu_, std::max<std::size_t>(end, 1 << 15));
    }
    for (const range& one : ranges_) {
      std::memcpy(pinned_.data() + one.offset, one.first, one.bytes);
      copies_.copy(memory_.data() + one.offset, pinned_.data() + one.offset, one.bytes);
    }
    copies_.synchronize();
  }
  template <class T>
  [[nodiscard]] T* at(T* host) const {
    return host == nullptr ? nullptr : reinterpret_cast<T*>(memory_.data() + offset_of(host));
  }
  template <class T>
  [[nodiscard]] std::span<T> at(std::span<T> host) const {
    return host.empty() ? host : std::span<T>{at(host.data()), host.size()};
  }
  void download(void* host, std::size_t bytes) {
    if (bytes == 0) return;
    const std::size_t offset = offset_of(host);
    copies_.copy(pinned_.data() + offset, memory_.data() + offset, bytes);
    copies_.synchronize();
    std::memcpy(host, pinned_.data() + offset, bytes);
  }

 private:
  struct range {
    const std::byte* first;
    std::size_t bytes, offset;
  };
  [[nodiscard]] std::size_t offset_of(const void* host) const {
    const auto* const byte = static_cast<const std::byte*>(host);
    for (const range& one : ranges_)
      if (one.first <= byte && byte < one.first + one.bytes)
        return one.offset + static_cast<std::size_t>(byte - one.first);
    return 0;
  }

  const belay::cuda::device<Api>* gpu_;
  belay::cuda::stream<Api> copies_;
  belay::cuda::device_memory<Api> memory_;
  belay::cuda::pinned_memory<Api> pinned_;
  std::vector<range> ranges_;
};

template <class Api, class Group>
class staged_group : public belay::group_operations<staged_group<Api, Group>> {
 public:
  staged_group(Group group, std::shared_ptr<device_side<Api>> side)
      : group_(std::move(group)), side_(std::move(side)) {}
  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int size() const { return group_.size(); }

 private:
  friend class belay::group_operations<staged_group>;
  template <belay::operation What, class... Arguments>
  void run(const belay::buffer_use& uses, const belay::where& at, const Arguments&... all) const {
    using belay::operation;
    side_->begin();
    side_->add(uses.reads.data(), uses.reads.size());
    side_->add(uses.writes.data(), uses.writes.size());
    if constexpr (What == operation::exchange) {
      (run_exchange(all, at), ...);
    } else {
      side_->upload();
      call<What>(at, all...);
      side_->download(const_cast<std::byte*>(uses.writes.data()), uses.writes.size());
    }
  }
  void run_exchange(std::span<const belay::p2p> transfers, const belay::where& at) const {
    std::vector<belay::p2p> there(transfers.begin(), transfers.end());
    for (const auto& one : there) side_->add(one.data, one.bytes);
    side_->upload();
    for (auto& one : there)
      if (one.bytes > 0) one.data = side_->at(static_cast<std::byte*>(one.data));
    group_.exchange(there, at);
    for (const auto& one : transfers)
      if (one.kind == belay::p2p::direction::receive) side_->download(one.data, one.bytes);
  }
  template <belay::operation What, class... Rest>
  void call(const belay::where& at, const Rest&... rest) const {
    if constexpr (What == belay::operation::barrier)
      group_.barrier(at);
    else
      call_with<What>(at, rest...);
  }
  template <belay::operation What, class T, class U, class Op>
  void call_with(const belay::where& at, std::span<const T> in, std::span<U> out, Op op) const {
    if constexpr (What == belay::operation::all_reduce)
      group_.all_reduce(side_->at(in), side_->at(out), op, at);
    else if constexpr (What == belay::operation::reduce_scatter)
      group_.reduce_scatter(side_->at(in), side_->at(out), op, at);
    else if constexpr (What == belay::operation::gather)
      group_.gather(side_->at(in), side_->at(out), op, at);
    else
      group_.scatter(side_->at(in), side_->at(out), op, at);
  }
  template <belay::operation What, class T, class U, class Op>
  void call_with(const belay::where& at, std::span<const T> in, std::span<U> out, Op op, int root) const {
    group_.reduce(side_->at(in), side_->at(out), op, root, at);
  }
  template <belay::operation What, class T, class U>
  void call_with(const belay::where& at, std::span<const T> in, std::span<U> out) const {
    if constexpr (What == belay::operation::all_gather)
      group_.all_gather(side_->at(in), side_->at(out), at);
    else
      group_.all_to_all(side_->at(in), side_->at(out), at);
  }
  template <belay::operation What, class T>
    requires(!std::is_const_v<T>)
  void call_with(const belay::where& at, std::span<T> inout, const auto& which) const {
    if constexpr (What == belay::operation::broadcast)
      group_.broadcast(side_->at(inout), which, at);
    else
      group_.all_gather_v(side_->at(inout), which, at);
  }
  template <belay::operation What, class T, class Op>
    requires(!std::is_const_v<T>)
  void call_with(const belay::where& at, std::span<T> inout, std::span<const std::size_t> counts, Op op) const {
    group_.reduce_scatter_v(side_->at(inout), counts, op, at);
  }
  template <belay::operation What, class T, class U>
  void call_with(const belay::where& at, std::span<const T> in, std::span<const std::size_t> sent, std::span<U> out,
                 std::span<const std::size_t> received) const {
    group_.all_to_all_v(side_->at(in), sent, side_->at(out), received, at);
  }

  Group group_;
  std::shared_ptr<device_side<Api>> side_;
};

template <class Rank>
class staged_rank {
 public:
  using group_type = staged_group<typename Rank::api_type, typename Rank::group_type>;
  explicit staged_rank(Rank& rank)
      : rank_(&rank),
        side_(std::make_shared<device_side<typename Rank::api_type>>(rank.gpu())),
        world_(rank.world(), side_) {}
  [[nodiscard]] int number() const { return rank_->number(); }
  [[nodiscard]] int size() const { return rank_->size(); }
  [[nodiscard]] const group_type& world() const { return world_; }
  [[nodiscard]] group_type group(std::span<const int> members) const { return {rank_->group(members), side_}; }

 private:
  Rank* rank_;
  std::shared_ptr<device_side<typename Rank::api_type>> side_;
  group_type world_;
};

/// `Devices::on_each(f)` calls `f(api)` for every device that all is to be run on, `on_one(f)` for one that shows what
/// happens on the host.
template <class Devices>
struct ranks_of_device {
  static constexpr int most = 3;

  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    return run(ranks, std::chrono::seconds(120), body);
  }
  template <class Body>
  static std::vector<bool> run(int ranks, std::chrono::duration<double> timeout, Body body) {
    std::vector<bool> out;
    if (ranks > most) return out;
    out.assign(static_cast<std::size_t>(ranks), true);
    Devices::on_each([&](auto& api) {
      const std::vector<bool> held = run_on(api, ranks, timeout, body);
      for (std::size_t q = 0; q < out.size(); ++q) out[q] = out[q] && held[q];
    });
    return out;
  }
  template <class Body>
  static ends run_failing(int ranks, Body body) {
    ends out;
    if (ranks > most) return out;
    std::vector<char> returned(static_cast<std::size_t>(ranks), 0);  // one byte a thread
    try {
      Devices::on_one([&](auto& api) {
        static_cast<void>(run_on(api, ranks, std::chrono::seconds(120), [&](auto& rank) {
          return (returned[static_cast<std::size_t>(rank.number())] = body(rank)) != 0;
        }));
      });
    } catch (const std::exception& error) {
      out.error = belay::message_of(error);
    } catch (...) {
      out.error = "no std::exception";
    }
    out.returned.assign(returned.begin(), returned.end());
    return out;
  }

 private:
  template <class Api, class Body>
  static std::vector<bool> run_on(Api& api, int ranks, std::chrono::duration<double> timeout, const Body& body) {
    const belay::cuda::world world(api, belay::host::world(ranks, {.timeout = timeout}), {.slot_bytes = 1 << 15});
    return world.run([&](auto& rank) {
      staged_rank staged(rank);
      return body(staged);
    });
  }
};

// The ranks themselves, for what reads and writes memory of the device by a group's copies.
template <class Devices>
struct bare_ranks_of_device {
  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    std::vector<bool> out;
    if (ranks > ranks_of_device<Devices>::most) return out;
    Devices::on_one([&](auto& api) {
      const belay::cuda::world world(api, belay::host::world(ranks), {.slot_bytes = 1 << 10});
      out = world.run(body);
    });
    return out;
  }
};

}  // namespace conformance
