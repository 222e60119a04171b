// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// NCCL of the host, one object a rank: its operations are places in the fake device's streams that all ranks reach
// together, it refuses by name what NCCL forbids or leaves undefined, and any call of it can fail.
//
//   fakes::device_api gpu;
//   fakes::nccl_fabric fabric(gpu);
//   fakes::nccl_api nccl(fabric);  // each rank's own
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/nccl.hpp"
#include "fakes/nccl/fabric.hpp"

namespace fakes {

class nccl_api {
 public:
  using communicator_type = nccl_communicator*;
  using window_type = nccl_window*;
  using stream_type = device_api::stream_type;
  struct status_type {
    std::string failure;
    bool pending = false;
  };
  using calls = belay::nccl::calls;

  explicit nccl_api(nccl_fabric& fabric, const nccl_injection& injection = {})
      : fabric_(&fabric), injection_(injection) {}

  [[nodiscard]] static bool succeeded(const status_type& got) { return got.failure.empty() && !got.pending; }
  [[nodiscard]] static bool in_progress(const status_type& got) { return got.failure.empty() && got.pending; }
  [[nodiscard]] static std::string text(const status_type& got) { return got.failure; }
  [[nodiscard]] nccl_fabric& fabric() const noexcept { return *fabric_; }
  /// How many calls the rank has made, and their names.
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }

  [[nodiscard]] int compiled_version() const noexcept { return fabric_->options().compiled; }
  status_type version(int& loaded) {
    return call("version", [&]() -> status_type {
      loaded = fabric_->options().version;
      return {};
    });
  }
  status_type make_id(belay::nccl::unique_id& id) {
    return call("make_id", [&]() -> status_type {
      id = {};
      id[0] = static_cast<std::byte>(++fabric_->ids);
      return {};
    });
  }
  status_type init(communicator_type& made, int ranks, const belay::nccl::unique_id& id, int rank, calls how) {
    return call("init", [&]() -> status_type {
      if (const std::string bad = within_capture("init"); !bad.empty()) return {bad};
      if (now_ == happens::silence) {
        made = fabric_->make(std::make_shared<nccl_ring>(static_cast<std::size_t>(ranks)), rank, ranks, how);
        return {"", true};
      }
      made = fabric_->join(id, rank, ranks, how);
      if (now_ == happens::error) made->error = "injected";
      made->polls = 2;
      return {"", true};
    });
  }
  status_type split(communicator_type of, int colour, int key, communicator_type& made, calls how) {
    return call("split", [&]() -> status_type {
      if (const std::string bad = within_capture("split"); !bad.empty()) return {bad};
      if (const std::string bad = usable(of); !bad.empty()) return {bad};
      if (now_ == happens::silence) return of->busy = true, status_type{"", true};
      if (now_ == happens::error) return of->error = "injected", status_type{"", true};
      fabric_->split(of, colour, key, made, how);
      return {"", of->kind == calls::non_blocking};
    });
  }
  status_type async_error(communicator_type on, status_type& told) {
    fabric_->let_peers_come(on);
    return fabric_->device().with_queues([&](late_queues&) -> status_type {
      if (const std::string bad = fabric_->asked(on); !bad.empty()) return {bad};
      told = {on->error, on->error.empty() && (on->busy || on->polls-- > 0)};
      return {};
    });
  }
  status_type destroy(communicator_type on) { return end("destroy", on, false); }
  status_type abort(communicator_type on) { return end("abort", on, true); }

  status_type group_start() {
    return call("group_start", [&]() -> status_type {
      grouped_ = true;
      return {};
    });
  }
  status_type group_end() {
    std::vector<side_of> all = std::exchange(bundle_, {});
    grouped_ = false;
    return call("group_end", [&]() -> status_type {
      if (now_ == happens::error)
        for (const side_of& each : all) each.on->error = "injected";
      if (now_ == happens::silence && !all.empty()) never_reached(all.front());
      return now_ == happens::as_asked ? queue(all) : status_type{};
    });
  }

  status_type all_reduce(const void* from, void* to, std::size_t count, belay::dtype type, belay::reduction how,
                         communicator_type on, stream_type stream) {
    return post("all_reduce", {side(nccl_call::all_reduce, from, to, count, type, how), on, stream});
  }
  status_type reduce_scatter(const void* from, void* to, std::size_t count, belay::dtype type, belay::reduction how,
                             communicator_type on, stream_type stream) {
    return post("reduce_scatter", {side(nccl_call::reduce_scatter, from, to, count, type, how), on, stream});
  }
  status_type reduce(const void* from, void* to, std::size_t count, belay::dtype type, belay::reduction how, int root,
                     communicator_type on, stream_type stream) {
    return post("reduce", {side(nccl_call::reduce, from, to, count, type, how, root), on, stream});
  }
  status_type all_gather(const void* from, void* to, std::size_t count, belay::dtype type, communicator_type on,
                         stream_type stream) {
    return post("all_gather", {side(nccl_call::all_gather, from, to, count, type), on, stream});
  }
  status_type all_to_all(const void* from, void* to, std::size_t count, belay::dtype type, communicator_type on,
                         stream_type stream) {
    if (from == to) return {refuse("an all_to_all in place")};
    return post("all_to_all", {side(nccl_call::all_to_all, from, to, count, type), on, stream});
  }
  status_type broadcast(const void* from, void* to, std::size_t count, belay::dtype type, int root,
                        communicator_type on, stream_type stream) {
    return post("broadcast", {side(nccl_call::broadcast, from, to, count, type, {}, root), on, stream});
  }
  status_type gather(const void* from, void* to, std::size_t count, belay::dtype type, int root, communicator_type on,
                     stream_type stream) {
    return post("gather", {side(nccl_call::gather, from, to, count, type, {}, root), on, stream});
  }
  status_type scatter(const void* from, void* to, std::size_t count, belay::dtype type, int root, communicator_type on,
                      stream_type stream) {
    return post("scatter", {side(nccl_call::scatter, from, to, count, type, {}, root), on, stream});
  }
  status_type send(const void* from, std::size_t count, belay::dtype type, int peer, communicator_type on,
                   stream_type stream) {
    return post("send", {side(nccl_call::transfer, from, nullptr, count, type, {}, peer), on, stream});
  }
  status_type receive(void* to, std::size_t count, belay::dtype type, int peer, communicator_type on,
                      stream_type stream) {
    return post("receive", {side(nccl_call::transfer, nullptr, to, count, type, {}, peer), on, stream});
  }

  status_type allocate(std::byte*& made, std::size_t bytes) {
    const status_type counted = call("mem_allocate", [] { return status_type{}; });
    if (!counted.failure.empty()) return counted;
    const auto got = fabric_->device().allocate(made, bytes);
    if (got.failure.empty()) fabric_->device().with_queues([&](late_queues&) { fabric_->memory[made] = bytes; });
    return {got.failure};
  }
  status_type release(std::byte* memory) {
    const status_type counted = end_call("mem_release", [&]() -> status_type {
      for (const auto& [address, each] : fabric_->windows)
        if (each->memory == memory) return {fabric_->refuse("memory is freed while a window is registered on it")};
      fabric_->memory.erase(memory);
      return {};
    });
    const auto got = fabric_->device().release(memory);
    return {counted.failure.empty() ? got.failure : counted.failure};
  }
  status_type register_window(communicator_type on, std::byte* memory, std::size_t bytes, window_type& made) {
    return call("register_window", [&]() -> status_type {
      if (const std::string bad = within_capture("register_window"); !bad.empty()) return {bad};
      if (const std::string bad = usable(on); !bad.empty()) return {bad};
      if (on->ring->collectives[static_cast<std::size_t>(on->rank)] == 0)
        return {fabric_->refuse("a window before a first collective")};
      const auto found = fabric_->memory.find(memory);
      if (found == fabric_->memory.end() || bytes % window_granularity() != 0 || bytes > found->second)
        return {fabric_->refuse("a window that is no memory of NCCL, in whole pages")};
      const std::uint64_t number = on->ring->windows[static_cast<std::size_t>(on->rank)]++;
      auto& [agreed, bases] = on->ring->window_bases[number];
      if (bases.empty()) agreed = bytes, bases.resize(static_cast<std::size_t>(on->ranks));
      if (agreed != bytes) return {fabric_->refuse("windows of different sizes")};
      bases[static_cast<std::size_t>(on->rank)] = memory;
      ++on->registered;
      auto window = std::make_unique<nccl_window>(nccl_window{on, number, memory});
      made = window.get();
      fabric_->windows.emplace(made, std::move(window));
      return {};
    });
  }
  status_type deregister_window(communicator_type on, window_type window) {
    return end_call("deregister_window", [&]() -> status_type {
      if (fabric_->windows.erase(window) == 0 || !fabric_->knows(on))
        return {fabric_->refuse("a window ends after its communicator")};
      --on->registered;
      return {};
    });
  }
  [[nodiscard]] static constexpr std::size_t window_granularity() noexcept { return 4096; }
  status_type find_team(communicator_type on, belay::nccl::load_store_team& team) {
    return call("find_team", [&]() -> status_type {
      const int ranks = fabric_->options().team;
      team = ranks == 0 || now_ != happens::as_asked ? belay::nccl::load_store_team{}
                                                     : belay::nccl::load_store_team{ranks, on->rank % ranks, 1};
      return {};
    });
  }
  status_type write_pointers(stream_type stream, window_type window, const belay::nccl::load_store_team& team,
                             std::byte** table) {
    const status_type counted = call("write_pointers", [] { return status_type{}; });
    if (!counted.failure.empty()) return counted;
    const std::vector<std::byte*> bases = fabric_->device().with_queues(
        [&](late_queues&) { return window->of->ring->window_bases.at(window->number).second; });
    const std::size_t first = static_cast<std::size_t>(window->of->rank - team.rank);
    const auto got = fabric_->device().each(stream, static_cast<std::size_t>(team.ranks),
                                            [=](std::size_t q) { table[q] = bases[first + q]; });
    return {got.failure};
  }

 private:
  enum class happens : std::uint8_t { as_asked, error, silence };
  struct side_of {
    nccl_side side;
    communicator_type on;
    stream_type stream;
  };

  std::string refuse(const std::string& why) {
    return fabric_->device().with_queues([&](late_queues&) { return fabric_->refuse(why); });
  }
  std::string usable(communicator_type on) {
    if (!fabric_->knows(on)) return fabric_->refuse("a communicator that has ended, or was never made");
    if (on->busy || on->polls > 0) return fabric_->refuse("a communicator that is not ready");
    return on->error;
  }

  // Counts the call, and lets the one that is to fail fail.
  template <class Do>
  status_type call(const char* name, const Do& act) {
    fabric_->device().await_turn(name);
    return fabric_->device().with_queues([&](late_queues& queues) -> status_type {
      fabric_->use(queues);
      names_.emplace_back(name);
      const bool chosen = names_.size() == injection_.at;
      if (chosen && injection_.how == nccl_injection::failing_way::fails) return {"injected"};
      now_ = !chosen                                          ? happens::as_asked
             : injection_.how == nccl_injection::failing_way::silent ? happens::silence
                                                              : happens::error;
      return act();
    });
  }
  // What ends something ends it also where it fails.
  template <class Do>
  status_type end_call(const char* name, const Do& act) {
    fabric_->device().await_turn(name);
    return fabric_->device().with_queues([&](late_queues& queues) -> status_type {
      fabric_->use(queues);
      names_.emplace_back(name);
      const status_type got = act();
      const bool fails = names_.size() == injection_.at && injection_.how == nccl_injection::failing_way::fails;
      return fails ? status_type{"injected"} : got;
    });
  }
  status_type end(const char* name, communicator_type on, bool at_once) {
    return end_call(name, [&]() -> status_type {
      if (!fabric_->knows(on)) return {fabric_->refuse("a communicator ends twice")};
      std::string bad = within_capture(name);
      if (on->in_graphs.use_count() > 1)  // NCCL would wait for that
        bad = fabric_->refuse("a communicator ends before a graph that has calls of it");
      if (!at_once && on->registered > 0) bad = fabric_->refuse("a communicator ends before its windows");
      if (!at_once)
        for (const auto& each : on->joined)
          if (!each->over()) bad = fabric_->refuse("a communicator is destroyed while something is queued on it");
      if (at_once) {
        for (communicator_type each : fabric_->with_relatives(on)) fabric_->release(each);
        std::erase_if(fabric_->windows, [&](const auto& each) { return each.second->of == on; });
      }
      fabric_->device().look_again();
      fabric_->erase(on);
      return {bad};
    });
  }

  status_type post(const char* name, const side_of& one) {
    return call(name, [&]() -> status_type {
      if (const std::string bad = usable(one.on); !bad.empty()) return {bad};
      const std::size_t reads = one.side.reads(one.on->rank, one.on->ranks),
                        writes = one.side.writes(one.on->rank, one.on->ranks);
      const auto there = [&](const void* place, std::size_t bytes) {
        return bytes == 0 || fabric_->device().holds(place, bytes, one.on->device);
      };
      if (!there(one.side.from, reads) || !there(one.side.to, writes))
        return {fabric_->refuse("memory of the host, or of another device")};
      if (fabric_->device().current() != one.on->device)
        return {fabric_->refuse("a thread that is on another device than its communicator")};
      if (now_ == happens::error) return one.on->error = "injected", status_type{};
      if (now_ == happens::silence) return never_reached(one), status_type{};
      if (!grouped_) return queue({one});
      if (!bundle_.empty() && bundle_.front().on->kind != one.on->kind)
        return {fabric_->refuse("blocking and non-blocking communicators in one group")};
      bundle_.push_back(one);
      return {};
    });
  }
  [[nodiscard]] std::shared_ptr<work_queue> gate(communicator_type on, std::uint64_t length) {
    auto made = fabric_->queues().make_meeting();
    std::erase_if(on->gates, [](const auto& each) { return each.first->done >= each.second; });
    on->gates.emplace_back(made, length);
    return made;
  }
  void never_reached(const side_of& one) {
    stuck_ = true;
    fabric_->queues().queue(one.stream, {{}, {gate(one.on, 1), 1}});
  }
  // The calls of one group meet their peers at the same place of each stream.
  status_type queue(const std::vector<side_of>& all) {
    captures& captured = fabric_->device().captured();
    for (const side_of& one : all)
      if (captured.captured(one.stream) != captured.by_this_thread())
        return {fabric_->refuse("an operation on a stream that is not captured, by a thread that captures")};
    if (captured.by_this_thread()) return capture(all);
    if (stuck_) return {};
    const std::string bad = meet(all, [&](const side_of& one) { return fabric_->queues().end_of(one.stream); });
    // Behind all of them, for they may be on several streams.
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::shared_ptr<work_queue> mine = gate(all[i].on, 1);
      mine->waiting.push_back({{}, {last_[i]->queue, last_[i]->length()}});
      ++mine->queued;
      fabric_->queues().queue(all[i].stream, {{}, {mine, 1}});
    }
    fabric_->device().look_again();
    return {bad};
  }
  template <class Behind>
  std::string meet(const std::vector<side_of>& all, const Behind& behind) {
    std::string bad;
    const auto earlier = std::exchange(last_, {});
    for (const side_of& one : all) {
      std::shared_ptr<nccl_meeting> met;
      const std::string why = fabric_->come(one.on, one.side, behind(one), earlier, met);
      if (bad.empty()) bad = why;
      std::erase_if(one.on->joined, [](const auto& each) { return each->over(); });
      one.on->joined.push_back(met);
      last_.push_back(met);
    }
    return bad;
  }

  // What a capture has forbidden fails, as every call of CUDA in it.
  std::string within_capture(const char* name) {
    const std::string bad = fabric_->device().captured().forbid(name);
    return bad.empty() ? bad : fabric_->refuse(bad);
  }
  // A graph comes to its peers in each launch.
  status_type capture(const std::vector<side_of>& all) {
    std::vector<std::shared_ptr<int>> alive;
    for (const side_of& one : all) {
      if (one.stream != all.front().stream) return {fabric_->refuse("a captured group on several streams")};
      alive.push_back(one.on->in_graphs);
    }
    if (all.empty()) return {};
    recorded_graph::node one;
    one.meets = [this, all, alive](late_queues& queues, const work_queue::queue_place& behind) {
      fabric_->use(queues);
      return launched(all, behind);
    };
    return {fabric_->device().captured().add(all.front().stream, std::move(one))};
  }
  // A launch tells of nothing: a failure is that of the communicator.
  work_queue::queue_place launched(const std::vector<side_of>& all, const work_queue::queue_place& behind) {
    names_.emplace_back("launched");
    const bool chosen = names_.size() == injection_.at;
    std::string bad;
    for (const side_of& one : all)
      if (bad = fabric_->knows(one.on) ? one.on->error : "ended"; !bad.empty()) return behind;
    if (chosen && injection_.how != nccl_injection::failing_way::silent) bad = "injected";
    if (chosen && injection_.how == nccl_injection::failing_way::silent) stuck_ = true;
    if (bad.empty() && !stuck_) bad = meet(all, [&](const side_of&) { return behind; });
    for (const side_of& one : all)
      if (!bad.empty()) one.on->error = bad;
    if (!bad.empty()) return behind;
    const std::shared_ptr<work_queue> mine = gate(all.front().on, all.size());
    for (std::size_t i = 0; i < all.size() && !stuck_; ++i, ++mine->queued)
      mine->waiting.push_back({{}, {last_[i]->queue, last_[i]->length()}});
    fabric_->device().look_again();
    return {mine, all.size()};
  }

  nccl_fabric* fabric_;
  nccl_injection injection_;
  std::vector<std::string> names_;
  happens now_ = happens::as_asked;
  bool grouped_ = false;
  bool stuck_ = false;  // nothing more of this rank comes to its peers
  std::vector<side_of> bundle_;
  std::vector<std::shared_ptr<nccl_meeting>> last_;  // what the rank has come to last
};

static_assert(belay::nccl::nccl_api<nccl_api>);

}  // namespace fakes
