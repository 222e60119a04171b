// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The NCCL backend with sums in rank order, as the conformance suites see a backend: over a fake NCCL and a fake device
// whose streams are late. The suites give buffers of the host, so each call brings them to the device and back.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/nccl/fake_nccl.hpp"

namespace conformance {

/// Memory of the device and of the host beside it.
class staging {
 public:
  explicit staging(const belay::cuda::device<fakes::device_api>& on)
      : there_(on, bytes), here_(on, bytes), copies_(on, belay::stream_kind::copy) {}

  /// What of the host is at [first, first + size) is on the device while `act` runs, and comes back.
  class moved {
   public:
    explicit moved(staging& of) : of_(&of) {}
    ~moved() { of_->used_ = 0; }
    /// The place on the device of a buffer of the host; those that overlap do so there.
    template <class T>
    std::span<T> operator()(std::span<T> x) {
      if (x.empty()) return {};
      const auto* const first = reinterpret_cast<const std::byte*>(x.data());
      for (const auto& each : held_)
        if (first >= each.host && first + x.size_bytes() <= each.host + each.bytes)
          return {reinterpret_cast<T*>(of_->there_.data() + each.place + (first - each.host)), x.size()};
      held_.push_back({const_cast<std::byte*>(first), x.size_bytes(), of_->used_});
      std::memcpy(of_->here_.data() + of_->used_, first, x.size_bytes());
      of_->copies_.copy(of_->there_.data() + of_->used_, of_->here_.data() + of_->used_, x.size_bytes());
      of_->used_ += (x.size_bytes() + 63) / 64 * 64;
      if (of_->used_ > bytes) throw belay::usage_error("too much for the staging", belay::where::current());
      return {reinterpret_cast<T*>(of_->there_.data() + held_.back().place), x.size()};
    }
    void arrive() { of_->copies_.synchronize(); }
    void come_back() {
      for (const auto& each : held_)
        of_->copies_.copy(of_->here_.data() + each.place, of_->there_.data() + each.place, each.bytes);
      of_->copies_.synchronize();
      for (const auto& each : held_) std::memcpy(each.host, of_->here_.data() + each.place, each.bytes);
    }

   private:
    struct range {
      std::byte* host;
      std::size_t bytes, place;
    };
    staging* of_;
    std::vector<range> held_;
  };

 private:
  static constexpr std::size_t bytes = std::size_t{4} << 20;
  belay::cuda::device_memory<fakes::device_api> there_;
  belay::cuda::pinned_memory<fakes::device_api> here_;
  belay::cuda::stream<fakes::device_api> copies_;
  std::size_t used_ = 0;
};

template <class Group>
class staged_group {
 public:
  staged_group(Group group, staging& by) : group_(std::move(group)), by_(&by) {}
  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int size() const { return group_.size(); }
  void barrier(belay::where at = belay::where::current()) const { group_.barrier(at); }

  template <class T, class Op>
  void all_reduce(std::span<T> x, Op op) const {
    with(x, x, [&](auto, auto there) { group_.all_reduce(there, op); });
  }
  template <class T, class Op>
  void reduce_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op) const {
    with(in, out, [&](auto from, auto to) { group_.reduce_scatter(from, to, op); });
  }
  template <class T, class Op>
  void reduce(std::span<T> x, Op op, int root) const {
    with(x, x, [&](auto, auto there) { group_.reduce(there, op, root); });
  }
  template <class T>
  void all_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out) const {
    with(in, out, [&](auto from, auto to) { group_.all_gather(from, to); });
  }
  template <class T>
  void all_to_all(std::span<const std::type_identity_t<T>> in, std::span<T> out) const {
    with(in, out, [&](auto from, auto to) { group_.all_to_all(from, to); });
  }
  template <class T>
  void broadcast(std::span<T> x, int root) const {
    with(x, x, [&](auto, auto there) { group_.broadcast(there, root); });
  }
  template <class T>
  void gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root) const {
    with(in, out, [&](auto from, auto to) { group_.gather(from, to, root); });
  }
  template <class T>
  void scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root) const {
    with(in, out, [&](auto from, auto to) { group_.scatter(from, to, root); });
  }
  void exchange(std::span<const belay::p2p> transfers) const {
    staging::moved moved(*by_);
    std::vector<belay::p2p> there(transfers.begin(), transfers.end());
    for (belay::p2p& each : there) each.data = moved(std::span(static_cast<std::byte*>(each.data), each.bytes)).data();
    moved.arrive();
    group_.exchange(there);
    moved.come_back();
  }
  template <class T>
  void send(int to, std::span<T> data, int tag = 0) const {
    const belay::p2p one = belay::p2p::send(to, data, tag);
    exchange({&one, 1});
  }
  template <class T>
  void receive(int from, std::span<T> data, int tag = 0) const {
    const belay::p2p one = belay::p2p::receive(from, data, tag);
    exchange({&one, 1});
  }

 private:
  // The larger first: the other one may be a part of it.
  template <class T, class Call>
  void with(std::span<const T> in, std::span<T> out, const Call& call) const {
    staging::moved moved(*by_);
    std::span<const T> from;
    std::span<T> to;
    if (in.size() > out.size())
      from = moved(in), to = moved(out);
    else
      to = moved(out), from = moved(in);
    moved.arrive();
    call(from, to);
    moved.come_back();
  }
  template <class T, class Call>
  void with(std::span<T> x, std::span<T>, const Call& call) const {
    with(std::span<const T>(x), x, call);
  }

  Group group_;
  staging* by_;
};

template <class Rank>
class staged_rank {
 public:
  using group_type = staged_group<typename Rank::group_type>;
  staged_rank(Rank& rank, const belay::cuda::device<fakes::device_api>& on)
      : rank_(&rank), by_(on), world_(rank.world(), by_) {}
  [[nodiscard]] int number() const { return rank_->number(); }
  [[nodiscard]] int size() const { return rank_->size(); }
  [[nodiscard]] const group_type& world() const { return world_; }
  [[nodiscard]] group_type group(std::span<const int> members) { return {rank_->group(members), by_}; }
  [[nodiscard]] std::uint64_t abandoned() const { return rank_->abandoned(); }

 private:
  Rank* rank_;
  staging by_;
  group_type world_;
};

struct nccl_ranks {
  using rank_type =
      belay::nccl::rank<belay::host::rank, fakes::device_api, fakes::nccl_api, belay::nccl::sums::fixed_order>;

  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    return run(ranks, std::chrono::seconds(120), body);
  }
  template <class Body>
  static std::vector<bool> run(int ranks, std::chrono::duration<double> timeout, Body body) {
    fakes::device_api gpu({.order = fakes::work_order::late, .devices = ranks});
    fakes::nccl_fabric fabric(gpu);
    std::vector<bool> out = belay::host::world{ranks, {.timeout = timeout}}.run([&](belay::host::rank& control) {
      fakes::nccl_api nccl(fabric);
      const belay::cuda::device<fakes::device_api> device(gpu, control.number(),
                                                          belay::cuda::device_number{control.number()});
      // Little, so that sums take several rounds.
      rank_type rank(control, device, nccl, {.workspace_bytes = 16384});
      staged_rank<rank_type> staged(rank, device);
      const bool held = body(staged);
      rank.finish();
      return held;
    });
    if (!gpu.empty() || !fabric.empty() || !fabric.refusals().empty()) out.push_back(false);
    return out;
  }
};

}  // namespace conformance
