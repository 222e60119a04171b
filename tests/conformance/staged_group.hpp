// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Groups whose buffers are memory of a device, for the conformance suites, whose buffers are the host's: every
// operation is given copies in memory of the device, and what it writes is copied back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/comm.hpp"

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
    std::vector<staged_range> merged;
    for (const staged_range& one : ranges_) {
      if (merged.empty() || merged.back().first + merged.back().bytes < one.first)
        merged.push_back(one);
      else
        merged.back().bytes =
            std::max(merged.back().bytes, static_cast<std::size_t>(one.first + one.bytes - merged.back().first));
    }
    ranges_ = merged;
    std::size_t end = 0;
    for (staged_range& one : ranges_) {
      one.offset = (end + 63) / 64 * 64 + reinterpret_cast<std::uintptr_t>(one.first) % 64;
      end = one.offset + one.bytes;
    }
    if (end > memory_.size_bytes()) {
      memory_ = belay::cuda::device_memory<Api>(*gpu_, std::max<std::size_t>(end, 1 << 15));
      pinned_ = belay::cuda::pinned_memory<Api>(*gpu_, std::max<std::size_t>(end, 1 << 15));
    }
    for (const staged_range& one : ranges_) {
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
  struct staged_range {
    const std::byte* first;
    std::size_t bytes, offset;
  };
  [[nodiscard]] std::size_t offset_of(const void* host) const {
    const auto* const byte = static_cast<const std::byte*>(host);
    for (const staged_range& one : ranges_)
      if (one.first <= byte && byte < one.first + one.bytes)
        return one.offset + static_cast<std::size_t>(byte - one.first);
    return 0;
  }

  const belay::cuda::device<Api>* gpu_;
  belay::cuda::stream<Api> copies_;
  belay::cuda::device_memory<Api> memory_;
  belay::cuda::pinned_memory<Api> pinned_;
  std::vector<staged_range> ranges_;
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

// Stands for the type of groups that a backend's ranks have.
struct own_group {};

template <class Rank, class Api, class Handle = own_group>
class staged_rank {
 public:
  using handle_type = std::conditional_t<std::is_same_v<Handle, own_group>, typename Rank::group_type, Handle>;
  using group_type = staged_group<Api, handle_type>;
  explicit staged_rank(Rank& rank)
      : rank_(&rank), side_(std::make_shared<device_side<Api>>(rank.gpu())), world_(rank.world(), side_) {}
  [[nodiscard]] int number() const { return rank_->number(); }
  [[nodiscard]] int size() const { return rank_->size(); }
  [[nodiscard]] const group_type& world() const { return world_; }
  [[nodiscard]] group_type group(std::span<const int> members) const { return {rank_->group(members), side_}; }
  [[nodiscard]] std::uint64_t abandoned() const { return rank_->abandoned(); }

 private:
  Rank* rank_;
  std::shared_ptr<device_side<Api>> side_;
  group_type world_;
};

}  // namespace conformance
