// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A `device_api` of the host: streams that are late on purpose, memory that the host cannot address, and failures of
// any call. Kernels are run by the loop of the host, products by the host's kit: so results have its bits.
//
//   fakes::device_api api({fakes::work_order::late});
//   belay::cuda::device gpu(api);
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/stream.hpp"
#include "fakes/cuda/captures.hpp"
#include "fakes/cuda/device_kernels.hpp"
#include "fakes/cuda/guarded_memory.hpp"
#include "fakes/cuda/host_addresses.hpp"
#include "fakes/cuda/late_queues.hpp"
#include "fakes/cuda/turned_meeting.hpp"
#include "fakes/cuda/turns.hpp"

namespace fakes {

struct device_options {
  work_order order = work_order::eager;
  std::uint64_t seed = 0;     // of `random`; an odd one also runs the indices of `each` backwards, by packs
  std::uint64_t fail_at = 0;  // this call fails, counted from 1; 0: none
  std::size_t memory = std::size_t{1} << 40;  // bytes of a device
  int devices = 1;                            // a thread is one of the first until it opens another
  fakes::turns* turns = nullptr;              // of the threads that call; null: as they come
};

struct device_status {
  std::string failure;
};

class device_api : public device_kernels<device_api, work_queue*, device_status> {
 public:
  using stream_type = work_queue*;
  struct event {
    work_queue::queue_place at;
    captures::mark in_capture;
    int device = 0;
    std::shared_ptr<std::uint64_t> time = nullptr;  // of timed ones: how many of them were reached, of all streams
  };
  using event_type = event*;
  using graph_type = const recorded_graph*;
  using status_type = device_status;
  using meeting_type = turned_meeting<device_api>;

  explicit device_api(const device_options& options = {})
      : options_(options), queues_(memory_, options.order, options.seed) {}
  device_api(const device_api&) = delete;
  device_api& operator=(const device_api&) = delete;

  [[nodiscard]] static bool succeeded(const status_type& got) { return got.failure.empty(); }
  [[nodiscard]] static std::string text(const status_type& got) { return got.failure; }

  status_type open() { return open(0); }
  status_type open(int device) {
    return call("open", [&] {
      if (device < 0 || device >= options_.devices) return std::string("no such device");
      threads_[std::this_thread::get_id()] = device;
      return std::string();
    });
  }

  status_type count_devices(int& devices) {
    return call("count_devices", [&] {
      devices = options_.devices;
      return std::string();
    });
  }
  status_type memory_info(belay::cuda::device_memory_info& room) {
    return call("memory_info", [&] {
      room = {options_.memory - taken(), options_.memory};
      return std::string();
    });
  }

  status_type allocate(std::byte*& made, std::size_t bytes) {
    return call("allocate", [&] {
      if (const std::string why = captures_.forbid("allocate"); !why.empty()) return why;
      made = bytes > options_.memory - taken() ? nullptr : memory_.map(bytes);
      if (made != nullptr) owners_[made] = {current(), bytes};
      return made == nullptr ? std::string("out of memory") : std::string();
    });
  }
  // As cudaFree: all that is queued is over before.
  status_type release(std::byte* memory) {
    return end_of_life("release", [&] {
      std::string why = captures_.forbid("release");
      queues_.reach_all();
      owners_.erase(memory);
      return memory_.unmap(memory) ? why : std::string("was not allocated");
    });
  }
  status_type register_host(std::byte* first, std::size_t bytes) {
    return call("register_host", [&] {
      if (const std::string why = captures_.forbid("register_host"); !why.empty()) return why;
      return registered_.emplace(first, bytes).second ? std::string() : std::string("is registered already");
    });
  }
  status_type unregister_host(std::byte* first) {
    return end_of_life("unregister_host", [&] {
      std::string why = captures_.forbid("unregister_host");
      queues_.reach_all();
      return registered_.erase(first) > 0 ? why : std::string("is not registered");
    });
  }

  status_type make_stream(stream_type& made, belay::stream_kind) {
    return call("make_stream", [&] {
      if (const std::string why = captures_.forbid("make_stream"); !why.empty()) return why;
      made = queues_.make();
      streams_[made] = {current(), options_.turns == nullptr ? std::nullopt : options_.turns->me()};
      return std::string();
    });
  }
  status_type destroy_stream(stream_type which) {
    return end_of_life("destroy_stream", [&] {
      if (!queues_.knows(which)) return std::string("no stream");
      std::string why = captures_.forbid("destroy_stream", which);
      queues_.destroy(which);
      return why;
    });
  }
  status_type make_event(event_type& made) {
    return call("make_event", [&] {
      auto one = std::make_unique<event>();
      made = one.get();
      one->device = current();
      events_.emplace(made, std::move(one));
      return std::string();
    });
  }
  status_type make_timed_event(event_type& made) {
    const status_type out = make_event(made);
    if (succeeded(out)) made->time = std::make_shared<std::uint64_t>(0);
    return out;
  }
  // A piece of time lies between any two that are reached.
  status_type elapsed(event_type from, event_type to, float& milliseconds) {
    return call("elapsed", [&] {
      for (const event* const each : {from, to})
        if (each->time == nullptr || *each->time == 0) return std::string("an event is not reached, or has no times");
      milliseconds = static_cast<float>(*to->time) - static_cast<float>(*from->time);
      return std::string();
    });
  }
  status_type destroy_event(event_type which) {
    return end_of_life("destroy_event", [&] { return events_.erase(which) > 0 ? "" : "no event"; });
  }
  status_type record(event_type which, stream_type on) {
    return on_stream("record", on, [&] {
      if (which->device != streams_[on].device) return std::string("an event of another device than the stream");
      which->in_capture = captures_.record(on);
      if (which->time != nullptr)
        queues_.queue(on, {[to = which->time = std::make_shared<std::uint64_t>(0), this] { *to = ++times_; }, {}});
      which->at = queues_.end_of(on);
      return std::string();
    });
  }
  status_type wait(stream_type on, event_type which) {
    return on_stream("wait", on, [&] {
      if (const auto captured = captures_.wait(on, which->in_capture)) return *captured;
      queues_.queue(on, {{}, which->at});
      return std::string();
    });
  }
  status_type query(event_type which, bool& reached) {
    return call("query", [&] {
      if (const std::string why = captures_.forbid("query", which->in_capture); !why.empty()) return why;
      reached = which->at.reached();
      return queues_.failure();
    });
  }
  status_type await(event_type which, std::chrono::nanoseconds at_most, bool& reached) {
    const auto look = [&] {
      if (const std::string why = captures_.forbid("await", which->in_capture); !why.empty()) return why;
      if (!held_) queues_.reach(which->at);
      reached = which->at.reached();
      return queues_.failure();
    };
    const status_type got = call("await", look);
    if (!succeeded(got) || reached || held_ || let_others()) return got;
    std::unique_lock lock(mutex_);  // what it waits for has not been queued yet
    changed_.wait_for(lock, at_most, [&] { return !look().empty() || reached; });
    return {queues_.failure()};
  }

  status_type copy(stream_type on, void* to, const void* from, std::size_t bytes) {
    return on_stream("copy", on, [&]() -> std::string {
      for (const void* place : {static_cast<const void*>(to), from})
        if (!memory_.holds(place, bytes) && !guarded_memory::within(registered_, place, bytes))
          return "memory of the host that is not registered";
      return add(on, [=] { std::memcpy(to, from, bytes); });
    });
  }
  [[nodiscard]] static constexpr std::size_t workspace_bytes() noexcept { return 4096; }
  [[nodiscard]] static constexpr std::size_t scratch_bytes() noexcept { return 512; }  // so that work comes in pieces
  status_type use_workspace(stream_type on, std::byte* first, std::size_t bytes) {
    note_room(on, bytes);
    return on_stream("use_workspace", on,
                     [&] { return std::string(memory_.holds(first, bytes) ? "" : "no memory of the device"); });
  }

  /// Work that is queued on a stream is recorded, and on those that wait for it meanwhile. The end gives it whole.
  status_type begin_capture(stream_type on) {
    return on_stream("begin_capture", on, [&] { return captures_.begin(on); });
  }
  status_type end_capture(stream_type on, graph_type& made) {
    made = nullptr;
    return end_of_life("end_capture", [&] {
      std::optional<recorded_graph> recorded;
      std::string why = captures_.end(on, recorded);
      if (!recorded || calls_.size() == options_.fail_at) return why;
      auto one = std::make_unique<recorded_graph>(std::move(*recorded));
      made = one.get();
      graphs_.emplace(made, std::move(one));
      return why;
    });
  }
  status_type launch(graph_type which, stream_type on) {
    return on_stream("launch", on, [&] {
      if (captures_.captured(on)) return captures_.forbid("launch");
      if (graphs_.count(which) == 0) return std::string("no graph");
      which->queue(queues_, on);
      return std::string();
    });
  }
  status_type destroy_graph(graph_type which) {
    return end_of_life("destroy_graph", [&] { return graphs_.erase(which) > 0 ? "" : "no graph"; });
  }

  /// Returns when the calling thread may call, where there are turns. None is taken by what changes nothing for others:
  /// events are made and ended by the hundred, and how often one is asked for, clocks decide.
  void await_turn(std::string_view name) {
    if (takes_turns() && name != "query" && !name.ends_with("_event")) options_.turns->pass(name);
  }
  [[nodiscard]] bool takes_turns() const noexcept { return options_.turns != nullptr; }
  /// Whether there are turns. Who calls again because something has not come lets others call first.
  bool let_others() {
    if (takes_turns()) options_.turns->let_others();
    return takes_turns();
  }
  /// For what stands on it: `act(queues)` while no call of it runs.
  template <class Do>
  decltype(auto) with_queues(const Do& act) {
    const std::lock_guard lock(mutex_);
    return act(queues_);
  }
  /// Threads that wait for what another queues look again.
  void look_again() noexcept { changed_.notify_all(); }
  /// The captures, and which device the calling thread is one of. For `with_queues`.
  [[nodiscard]] captures& captured() noexcept { return captures_; }
  [[nodiscard]] int current() const {
    const auto found = threads_.find(std::this_thread::get_id());
    return found == threads_.end() ? 0 : found->second;
  }
  /// Whether that is memory of one device, and of which. For `with_queues`.
  [[nodiscard]] bool holds(const void* place, std::size_t bytes, int device) const {
    auto next = owners_.upper_bound(static_cast<const std::byte*>(place));
    return memory_.holds(place, bytes) && (--next)->second.device == device;
  }
  /// Whether that is memory of a device. For `with_queues`.
  [[nodiscard]] bool holds(const void* place, std::size_t bytes) const { return memory_.holds(place, bytes); }

  /// No wait ends, until `go_on`.
  void hold() noexcept { held_ = true; }
  void go_on() noexcept { held_ = false; }
  /// Whether nothing of it is left: memory, registered pages, streams, events, graphs, captures.
  [[nodiscard]] bool empty() const noexcept {
    return memory_.ranges() + registered_.size() + queues_.count() + events_.size() + graphs_.size() == 0 &&
           !captures_.any();
  }
  /// How many calls there were; any thread may ask.
  [[nodiscard]] std::size_t calls_so_far() { return with_queues([this](auto&) { return calls_.size(); }); }
  /// The names of all calls so far.
  [[nodiscard]] const std::vector<std::string>& calls() const noexcept { return calls_; }

 protected:
  template <class Work>
  status_type compute(const char* name, stream_type on, const Work& work) {
    return compute(name, on, work, work);
  }
  // The work is of that kernel, which is looked at, and knows what a device is not told.
  template <class Kernel, class Work>
  status_type compute(const char* name, stream_type on, const Kernel& kernel, const Work& work) {
    return on_stream(name, on, [&]() -> std::string {
      const auto reaches = [&](auto* at) { return holds(at, 0) || guarded_memory::within(registered_, at, 0); };
      if (unreachable_address(kernel, reaches) == nullptr) return add(on, work);
      return "a kernel has an address of the host that is not registered: " + name_of_kernel<Kernel>();
    });
  }

 private:
  friend class device_kernels<device_api, work_queue*, device_status>;
  // Counts the call, and fails the one that is to fail. Once a kernel has failed, all calls do.
  template <class Do>
  status_type call(const char* name, const Do& act) {
    await_turn(name);
    const std::lock_guard lock(mutex_);
    calls_.emplace_back(name);
    if (calls_.size() == options_.fail_at) return {"injected"};
    if (!queues_.failure().empty()) return {queues_.failure()};
    return {act()};
  }
  // What ends something ends it also where it fails.
  template <class Do>
  status_type end_of_life(const char* name, const Do& act) {
    await_turn(name);
    const std::lock_guard lock(mutex_);
    calls_.emplace_back(name);
    const std::string failure = act();
    return {calls_.size() == options_.fail_at ? "injected" : failure.empty() ? queues_.failure() : failure};
  }
  template <class Do>
  status_type on_stream(const char* name, stream_type on, const Do& act) {
    if (takes_turns()) work_for_maker_of(on);
    return call(name, [&] {
      if (!queues_.knows(on)) return std::string("no stream");
      return streams_[on].device == current() ? act() : std::string("a stream of another device than the thread's");
    });
  }
  // A rank's communication thread is known by the streams that the rank has made.
  void work_for_maker_of(stream_type which) {
    std::optional<turns::caller> maker;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = streams_.find(which); found != streams_.end()) maker = found->second.maker;
    }
    if (maker) options_.turns->work_for(*maker);
  }
  [[nodiscard]] bool backwards() const { return options_.order == work_order::random && options_.seed % 2 == 1; }
  // What is captured does not run.
  template <class Work>
  std::string add(stream_type on, const Work& work) {
    if (captures_.captured(on)) return captures_.add(on, work);
    queues_.queue(on, {work, {}});
    return {};
  }

  struct owner {
    int device;
    std::size_t bytes;
  };
  struct stream_owner {
    int device = 0;
    std::optional<turns::caller> maker;
  };
  // Bytes of the thread's device.
  [[nodiscard]] std::size_t taken() const {
    std::size_t all = 0;
    for (const auto& [first, each] : owners_) all += each.device == current() ? each.bytes : 0;
    return all;
  }

  device_options options_;
  bool held_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  guarded_memory memory_;
  guarded_memory::range_map registered_;
  late_queues queues_;
  captures captures_;
  std::map<const event*, std::unique_ptr<event>> events_;
  std::uint64_t times_ = 0;
  std::map<const recorded_graph*, std::unique_ptr<recorded_graph>> graphs_;
  std::vector<std::string> calls_;
  std::map<std::thread::id, int> threads_;
  std::map<const std::byte*, owner, std::less<>> owners_;
  std::map<stream_type, stream_owner> streams_;
};

static_assert(belay::cuda::device_api<device_api> && belay::cuda::capturing_api<device_api>);
static_assert(belay::compute_kit<belay::cuda::kit<device_api>, float>);
static_assert(belay::multiplying_kit<belay::cuda::kit<device_api>, belay::bf16, belay::bf16, belay::bf16>);
static_assert(belay::clocked_stream<belay::cuda::stream<device_api>>);
static_assert(belay::device_region<belay::cuda::device_memory<device_api>>);
static_assert(belay::memory_region<belay::cuda::pinned_memory<device_api>>);

}  // namespace fakes
