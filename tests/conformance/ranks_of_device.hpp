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

  void run_call(const belay::op_call& call) const {
    side_->begin();
    side_->add(call.in, call.in_bytes());
    side_->add(call.out, call.out_bytes());
    std::vector<belay::p2p> transfers(call.exchanged().begin(), call.exchanged().end());
    for (const belay::p2p& one : transfers) side_->add(one.data, one.bytes);
    side_->upload();
    belay::op_call there = call;
    if (call.in_bytes() > 0) there.in = side_->at(call.in);
    if (call.out_bytes() > 0) there.out = side_->at(call.out);
    for (belay::p2p& one : transfers)
      if (one.bytes > 0) one.data = side_->at(static_cast<std::byte*>(one.data));
    there.transfers = transfers.data();
    group_.run_call(there);
    side_->download(call.out, call.out_bytes());
    for (const belay::p2p& one : call.exchanged())
      if (one.kind == belay::p2p::direction::receive) side_->download(one.data, one.bytes);
  }

 private:
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
