// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stream of a device. Kernels, copies and products of the rank join its order; events order it with other streams, of
// the device or of the host.
//
//   belay::cuda::stream copies(gpu, belay::stream_kind::copy);
//   copies.copy(batch.data(), pinned.data(), bytes);
//   kit.stream().wait(copies.record());  // kernels from here on find the batch
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda/captured_fork.hpp"
#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/graph.hpp"
#include "belay/backend/cuda/stream_state.hpp"
#include "belay/backend/cuda/timed_spans.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/queue_stream.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/stream_watch.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Work that runs once, as a kernel of one index.
template <std::invocable Work>
struct single_run {
  /// A function without index as a kernel of one.
  Work work;
  BELAY_HD void operator()(std::size_t) const { work(); }
};

/// Made with all its events: queueing allocates nothing. Work is a functor that is marked for the device (BELAY_HD),
/// and is kept by value until it has run: at most 288 bytes, as of every stream, and 256 of a kernel of many indices.
template <device_api Api>
class stream : public counted_stream {
 public:
  using graph_type = graph<Api>;

  /// Where the rank's world gives a `watch`, every wait for the stream ends, as one for a `queue_stream` does.
  explicit stream(const device<Api>& on, stream_kind kind = stream_kind::compute,
                  std::shared_ptr<const stream_watch> watch = {}, where at = where::current())
      : counted_stream(kind), state_(std::make_shared<stream_state<Api>>(on, kind, std::move(watch), at)) {}
  stream(stream&&) noexcept = default;
  stream& operator=(stream&&) = delete;
  /// Waits for what is queued. An error that nobody was told of comes out of events that outlive the stream.
  ~stream() {
    if (state_ != nullptr) state_->close();
  }

  /// Another stream of the same device.
  [[nodiscard]] stream another_stream(stream_kind kind, where at = where::current()) const {
    return stream(state_->on(), kind, state_->watch(), at);
  }

  /// Makes the calling thread one of the stream's device: for one that is not the rank's, before it queues here. Throws
  /// backend_error.
  void open_device(where at = where::current()) const { state_->on().open(at); }

  /// Queues `work()`, as one thread of the device.
  template <std::invocable Work>
  void run(const Work& work) {
    static_assert(
        std::is_trivially_copyable_v<Work> && sizeof(Work) <= queue_stream::closure_room,
        "belay: work for a device is kept by value until it has run: capture pointers and sizes, at most 288 bytes");
    expect(api().each(handle(), 1, single_run<Work>{work}), "each", 0, {});
  }
  /// Queues f(0) ... f(count - 1).
  template <kernel::indexed F>
  void each(std::size_t count, const F& f) {
    static_assert(queueable_kernel<F>,
                  "belay: a kernel for a device is kept by value until it has run: a struct of pointers and scalars of "
                  "at most 256 bytes");
    if (count > 0) expect(api().each(handle(), count, f), "each", 0, {});
  }
  /// Queues a team for each of `count` rows.
  template <kernel::cooperative G>
  void teams(std::size_t count, const G& g, where at = {}) {
    static_assert(queueable_kernel<G>,
                  "belay: a kernel for a device is kept by value until it has run: a struct of pointers and scalars of "
                  "at most 256 bytes");
    if (count > 0) expect(api().teams(handle(), count, g), "teams", 0, at);
  }
  /// Queues a copy, where the device addresses both places: its own memory, or registered memory of the host.
  void copy(void* to, const void* from, std::size_t bytes, where at = where::current()) {
    if (bytes == 0) return;
    const timed_part traced(*this, {.name = "copy", .bytes = bytes, .kind = span_kind::copy}, at);
    expect(api().copy(handle(), to, from, bytes), "copy", bytes, at);
  }

  /// A graph of the work that `work()` queues here: nothing of it runs before `launch`. It queues with pointers and
  /// scalars that stay what they are, does not wait, and allocates nothing of the device. Streams that wait for this
  /// one's events are captured too, and this one waits for theirs before the end; so are the rank's communications over
  /// NCCL, by themselves. Throws backend_error, and what `work` throws; the capture has ended then.
  template <std::invocable Work>
  requires capturing_api<Api>
  [[nodiscard]] graph_type capture(Work&& work, where at = where::current()) {
    const device<Api>& on = state_->on();
    const std::uint64_t before = state_->last_place();
    std::shared_ptr<graph_handle<Api>> made;
    const left_branches leaves{on, made};
    for (captured_branch<Api>* const each : on.branches()) each->prepare(at);
    expect(api().begin_capture(handle()), "begin_capture", 0, at);
    on.begin_capture();
    state_->begin_capture();
    std::vector<std::shared_ptr<captured_member<Api>>> members;
    typename Api::graph_type captured{};
    try {
      for (captured_branch<Api>* const each : on.branches()) each->fork(*state_, at);
      std::forward<Work>(work)();
      for (captured_branch<Api>* const each : on.branches())
        if (auto member = each->join(*state_, at)) members.push_back(std::move(member));
    } catch (...) {
      note_end();
      if (api().succeeded(api().end_capture(handle(), captured)))
        on.note(api().destroy_graph(captured), "destroy_graph");
      renew_after_failure(before);
      throw;
    }
    note_end();
    const auto got = api().end_capture(handle(), captured);
    if (!api().succeeded(got)) renew_after_failure(before);
    expect(got, "end_capture", 0, at);
    made = std::make_shared<graph_handle<Api>>(on, captured);
    return graph_type(made, before + 1, state_->last_place(), std::move(members));
  }
  /// Queues all of a graph that was captured here. Events that were recorded in the capture stand for its end. Throws
  /// what has failed of the communications in it.
  void launch(graph_type& what, where at = where::current()) requires capturing_api<Api> {
    for (const auto& each : what.members()) each->before_launch(state_, at);
    {
      const timed_part traced(*this, {.name = "graph", .kind = span_kind::action}, at);
      if (!what.handle().launch(handle(), at)) {
        for (const auto& each : what.members()) each->before_launch(state_, at);  // says why
        throw usage_error("the graph has been ended by what communicates in it: capture it anew", at);
      }
    }
    if (what.take_first_launch()) state_->renew(what.first_place(), what.last_place(), at);
    for (const auto& each : what.members()) each->after_launch(state_, at);
  }

  /// From now on this stream, which is not the one that is captured, is in each capture of the device: its work there
  /// comes after the begin, and is over before the end. By the rank's host thread, outside of captures.
  void join_captures() requires capturing_api<Api> {
    if (forked_ == nullptr) forked_ = std::make_unique<forked_stream<Api>>(state_);
  }

  /// An event at the end of what is queued. Throws backend_error.
  [[nodiscard]] stream_event record(where at = where::current()) {
    const std::uint64_t place = state_->record(at);
    return stream_event(state_, place).at(counted_stream::mark());
  }
  /// Later work begins when `mark` is reached. The host waits for one that is not of the device, and for a
  /// communication until peers have started it too.
  void wait(const stream_event& mark, where at = where::current()) {
    if (const auto* other = dynamic_cast<const device_places<Api>*>(mark.source()); other == nullptr)
      mark.synchronize(at);
    else
      let_wait(*other, mark, at);
    join(mark);
  }
  /// Returns when all work is over; throws what has failed of it.
  void synchronize(where at = where::current()) {
    state_->synchronize(at);
  }

  /// Returns when all work is over, and leaves what has failed to the next `synchronize`.
  void wait_until_idle(where at = where::current()) const {
    try {
      static_cast<void>(
          state_->wait_until(state_->record(at), largest_value<std::chrono::steady_clock::time_point>, at));
    } catch (const backend_error& thrown) {
      state_->fail(thrown);
    }
  }

  /// Layers' calls, copies, launches and waits of this stream are spans of `log` from now on, as the device runs them;
  /// null: of none. Waits for all that is queued, and those that were spans get their times. The first log makes events
  /// for them. Throws backend_error.
  void trace_into(span_log* log, where at = where::current()) requires timing_api<Api> {
    if (std::exchange(spans_, nullptr) != nullptr) timed_->resolve(at);
    if (log == nullptr) return;
    if (timed_ == nullptr) timed_ = std::make_unique<timed_spans<Api>>(state_->on(), handle(), at);
    timed_->anchor(at);
    spans_ = log;
  }
  [[nodiscard]] span_log* spans() const noexcept { return spans_; }
  /// For `queued_span`.
  void begin_span(traced_span* of, where at = where::current()) requires timing_api<Api> {
    if (timed_ != nullptr) timed_->begin(of, at);
  }
  void end_span(traced_span* of, where at = where::current()) requires timing_api<Api> {
    if (timed_ != nullptr) timed_->end(of, at);
  }

  /// The Api, and its own handle of this stream.
  [[nodiscard]] Api& api() const noexcept { return state_->api(); }
  [[nodiscard]] typename Api::stream_type handle() const noexcept { return state_->handle(); }
  /// The state that the stream shares with its events.
  [[nodiscard]] const std::shared_ptr<stream_state<Api>>& state() const noexcept { return state_; }
  /// Throws the backend_error of `call` unless it has succeeded.
  void expect(const typename Api::status_type& got, const char* call, std::size_t bytes, where at) const {
    state_->on().expect(got, call, bytes, at);
  }

 private:
  // What is queued while it exists is a span, while the stream is traced.
  class timed_part {
   public:
    timed_part(stream& of, traced_span what, const where& at) {
      if (of.spans_ == nullptr) [[likely]]
        return;
      what.lane = lane_of(of.kind());
      what.file = at.file, what.line = static_cast<std::uint32_t>(at.line);
      if constexpr (timing_api<Api>) traced_.emplace(of, of.spans_->add(what));
    }

   private:
    struct nothing {};
    std::optional<std::conditional_t<timing_api<Api>, queued_span<stream>, nothing>> traced_;
  };

  // Branches are told when the capture is over, however it ends.
  struct left_branches {
    const device<Api>& on;
    const std::shared_ptr<graph_handle<Api>>& made;
    ~left_branches() {
      for (captured_branch<Api>* const each : on.branches()) each->end_capture(made);
    }
  };

  void let_wait(const device_places<Api>& other, const stream_event& mark, where at) {
    std::optional<timed_part> traced;
    if (spans_ != nullptr && !mark.ready())
      traced.emplace(*this, traced_span{.name = wait_name(mark.source()->kind()), .kind = span_kind::wait}, at);
    other.let_wait(*state_, mark.place(), at);
  }

  // Of a capture.
  void note_end() const noexcept {
    state_->on().end_capture();
    state_->end_capture();
  }
  // Places of a capture that has come to nothing.
  void renew_after_failure(std::uint64_t before) const noexcept {
    try {
      state_->renew(before + 1, state_->last_place(), {});
    } catch (const backend_error& thrown) {
      state_->fail(thrown);
    }
  }

  std::shared_ptr<stream_state<Api>> state_;
  std::unique_ptr<forked_stream<Api>> forked_;  // where it joins captures
  std::unique_ptr<timed_spans<Api>> timed_;     // where it was traced
  span_log* spans_ = nullptr;
};

}  // namespace belay::inline BELAY_ABI::cuda
