// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A part of a step that is the same in every step: it is queued as it is the first time, captured the second, and
// launched from then on.
//
//   belay::captured_part<Stream> part;
//   part.run(stream, engine.memory_version(), [&] { kit.each(n, first), kit.each(n, second); });
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream.hpp"

namespace belay::inline BELAY_ABI {

/// Whether steps are captured as graphs of a device, or run as they are (train/step_graphs.hpp).
enum class graph_use : std::uint8_t { none, captured };

/// A stream that has graphs. `capture(work)` calls `work()`, whose kernels, copies and events on the stream are
/// recorded and not run; `launch(graph)` queues all of them, as often as one likes, with the pointers and scalars of
/// then. Work that is captured does not wait, and allocates nothing.
template <class S>
concept capturing_stream = stream<S> && requires(S& s, void (*work)(), typename S::graph_type& made, where at) {
  { s.capture(work, at) } -> std::same_as<typename S::graph_type>;
  s.launch(made, at);
};

template <capturing_stream Stream>
class captured_part {
 public:
  /// How the next run is done.
  enum class turn : std::uint8_t { queued, captured, launched };

  /// The way that the next run is done, of a part that belongs to `version`: a graph of another version is dropped, and
  /// the first run is queued again. A first run makes what a capture may not: handles, connections.
  [[nodiscard]] turn next(std::uint64_t version) {
    if (std::exchange(version_, version) != version) drop();
    return graph_ ? turn::launched : queued_ ? turn::captured : turn::queued;
  }
  /// A run was queued and has not thrown: the next is captured.
  void note_queued() noexcept { queued_ = true; }
  /// Records what `queue()` gives the stream, to be launched; nothing has run. Throws what `queue()` throws.
  void capture(Stream& stream, function_ref<void()> queue, where at) { graph_.emplace(stream.capture(queue, at)); }
  void launch(Stream& stream, where at) { stream.launch(*graph_, at); }
  void drop() noexcept {
    graph_.reset();
    queued_ = false;
  }

  /// Does what `queue()` does, in the order of the stream.
  void run(Stream& stream, std::uint64_t version, function_ref<void()> queue, where at = where::current()) {
    const turn now = next(version);
    if (now == turn::queued) {
      queue();
      return note_queued();
    }
    if (now == turn::captured) capture(stream, queue, at);
    launch(stream, at);
  }

 private:
  std::optional<typename Stream::graph_type> graph_;
  std::uint64_t version_ = 0;
  bool queued_ = false;
};

}  // namespace belay::inline BELAY_ABI
