// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Steps that are captured as graphs: the micro-batches up to the last reduction, the division with the norm's squares,
// and the update. The first step runs as it is, the second is captured, and later ones are launches: the host runs
// neither layers nor optimizer again. Between the graphs a commit does what it always does: it reads the findings, and
// votes. What changes from step to step lies in memory of the device, and is copied there before a launch: the learning
// rate, bias corrections, divisor and clip factor by Belay, the batch by the trainer.
//
//   belay::step_graphs graphs{mesh, store, optimizer, belay::graph_use::captured};
//   for (auto number : run.steps(steps)) {
//     belay::queue_copy(run.engine().compute(), batch, pinned_batch(number), bytes);
//     belay::step step{run.engine(), store};
//     graphs.run([&] {
//       auto y = belay::forward(step, net, belay::constant(x));
//       auto [loss, grad] = belay::squared_error(step, y.out(), targets);
//       std::move(y).backward(grad);
//     });
//     auto outcome = std::move(step).commit(mesh, belay::samples{rows});
//     if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = rate(number)});
//   }
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/comm/communicator.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/where.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket/contributions.hpp"
#include "belay/parallel/bucket/update_observer.hpp"
#include "belay/parallel/gathers/parameter_gathers.hpp"

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

/// A part of a step that is the same in every step: it is queued as it is the first time, captured the second, and
/// launched from then on.
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

 private:
  std::optional<typename Stream::graph_type> graph_;
  std::uint64_t version_ = 0;
  bool queued_ = false;
};

/// A part of a step where streams have graphs; elsewhere none.
template <class Stream>
struct part_of {
  struct type {};
};
template <capturing_stream Stream>
struct part_of<Stream> {
  using type = captured_part<Stream>;
};

/// The graphs of one store and its optimizer. `Store` is a `parameter_store`.
template <class Store>
class step_graphs final : private update_observer {
  using run_type = typename Store::run_type;
  using engine_type = typename run_type::engine_type;
  using memory_type = typename run_type::memory_type;
  using stream_type = typename engine_type::stream_type;
  static constexpr bool can_capture = capturing_stream<stream_type> && device_region<memory_type>;

 public:
  /// In a body, before its first step; all outlive it, and the optimizer stays where it is: one that was moved queues
  /// its updates beside the graphs. With `graph_use::none` it does nothing, and `run` calls its body. Throws
  /// usage_error where steps cannot be captured: streams have no graphs, ranks share a device, experts are divided
  /// among ranks, or parameters, gradients or state lie in a file.
  template <class Optimizer>
  step_graphs(const mesh& mesh, Store& store, Optimizer& optimizer, graph_use use, where at = where::current())
      : store_(&store), optimizer_(&optimizer), use_(use) {
    if (use == graph_use::none) return;
    if (!store.run().rehearsing()) expect_possible(mesh, optimizer, at);
    if constexpr (can_capture) {
      // (nvcc takes an assignment for a result that is ignored.)
      static_cast<void>(observed_ = store.observe(*this, observer_turn::queues_work, at));
      store.gathers_in(gathers_begin::when_asked);
    }
  }
  step_graphs(const step_graphs&) = delete;  // the store points to it
  step_graphs& operator=(const step_graphs&) = delete;
  ~step_graphs() {
    if (observed_.all() != nullptr) store_->gathers_in(gathers_begin::with_step);
  }

  /// Does what `body()` does: all forwards and backwards of a step, once it has begun. The body discharges all handles
  /// that it opens, keeps no memory of the step, does not wait, and asks nothing of the host that changes from step to
  /// step: it is called in the first step, to be captured, and after `drop`, a replay, or other memory or another
  /// number of micro-batches. A handle that it leaves open is named as by a commit. Throws what the body throws.
  template <std::invocable Body>
  void run(Body&& body, where at = where::current()) {
    if constexpr (can_capture) {
      if (use_ == graph_use::captured) return run_in_turn(body, at);
    }
    std::forward<Body>(body)();
  }

  /// The next step runs as it is, and the one after is captured: of shapes, layers or memory that have changed.
  void drop() noexcept { ++dropped_; }
  /// How often the micro-batches were launched.
  [[nodiscard]] std::uint64_t launches() const noexcept { return launches_; }

 private:
  using part_type = typename part_of<stream_type>::type;

  [[nodiscard]] engine_type& engine() const noexcept { return store_->run().engine(); }
  [[nodiscard]] std::uint64_t version() const noexcept {
    const std::size_t micro_batches = store_->buckets().contributions().micro_batches();
    return fnv1a().add(engine().memory_version()).add(dropped_).add(micro_batches).value();
  }

  template <class Optimizer>
  void expect_possible(const mesh& mesh, const Optimizer& optimizer, where at) const {
    const auto refuse = [&](const std::string& why) { throw usage_error(why + ": take belay::graph_use::none", at); };
    if (!can_capture)
      refuse(
          "steps are captured as graphs by streams that have them, and these have none: those of belay::cuda do, over "
          "an Api with begin_capture");
    if (const int ranks = mesh.shape().expert; ranks > 1)
      refuse("experts are divided among " + std::to_string(ranks) +
             " ranks, whose exchange waits for counts on the host, which no graph does");
    if (const int ranks = mesh.world().size(); ranks > 1 && meets_on_host(mesh.world()))
      refuse(std::to_string(ranks) +
             " ranks share a device, and meet on the host in each operation, which no graph has");
    else if (ranks > 1 && !is_captured(mesh.world()))
      refuse("what the " + std::to_string(ranks) + " ranks of this world communicate is not captured");
    if (store_->buckets().value_file() != nullptr || store_->buckets().gradient_file() != nullptr)
      refuse_file("shards of parameters or gradients are", at);
    if (optimizer.state_tier() == tier::file) refuse_file("the optimizer's state is", at);
  }
  [[noreturn]] static void refuse_file(const std::string& what, where at) {
    throw usage_error(what +
                          " in a file, which the host reads and writes between copies of the step, and no graph has "
                          "that: keep it in tier pinned or host, or take belay::graph_use::none",
                      at);
  }

  // While spans are taken, what is queued is; a graph has none.
  void queue_part(part_type& part, const char* name, function_ref<void()> queue, where at) {
    if (engine().spans() != nullptr) return queue();
    using turn = typename part_type::turn;
    const turn now = part.next(version());
    if (now == turn::queued) {
      queue();
      return part.note_queued();
    }
    if (now == turn::captured) part.capture(engine().compute(), queue, at);
    launch(part, name, at);
  }
  void launch(part_type& part, const char* name, where at) {
    if constexpr (requires { engine().watch().mark_launch(name, std::uint64_t{}); }) {
      const auto told = engine().watch().mark_launch(name, engine().step_number());
      part.launch(engine().compute(), at);
    } else {
      part.launch(engine().compute(), at);
    }
  }
  void run_in_turn(function_ref<void()> body, where at) {
    if (engine().spans() != nullptr) return store_->begin_body(at), body();
    using turn = typename part_type::turn;
    stream_type& compute = engine().compute();
    auto& buckets = store_->buckets();
    expect_begin(at);
    const turn now = body_.next(version());
    if (now == turn::launched) {
      buckets.recall(*recorded_, at);
    } else {
      bool whole = false;
      const auto all = [&, transfers = host_transfers()] {
        store_->begin_body(at);
        body();
        store_->end_body(at);
        join_copies(at);
        whole = ended(transfers, at);
      };
      if (now == turn::queued) {
        all();
        if (whole) body_.note_queued();
        return;
      }
      body_.capture(compute, all, at);
      if (!whole) return body_.drop();
      recorded_ = buckets.contributions();
    }
    ++launches_;
    launch(body_, "micro-batches", at);
  }
  // Work of the host between copies, such as that of a file.
  [[nodiscard]] std::uint64_t host_transfers() const {
    return engine().has_copies() ? engine().copies().host_transfers() : 0;
  }
  void join_copies(where at) const {
    if (!engine().has_copies()) return;
    auto& copies = engine().copies();
    copies.let_wait(engine().compute(), copies.record(), at);
  }
  // What a launch finds must be what the capture found.
  void expect_begin(where at) const {
    const ledger& obligations = engine().obligations();
    if (obligations.open_count() == 0 && engine().activations().offsets().live_bytes() == 0 &&
        !store_->buckets().contributions().any())
      return;
    throw usage_error(
        "what is captured is a whole step: it is run once in each, after the step has begun, and before it no forward "
        "and no backward of the step",
        at);
  }
  // Whether the body has ended what it began, and has left nothing to the host. Open obligations a release build leaves
  // to the commit, which refuses.
  [[nodiscard]] bool ended(std::uint64_t transfers, where at) const {
    const ledger& obligations = engine().obligations();
    if (const std::size_t open = obligations.open_count(); open > 0) {
      if constexpr (checked(check_level::local)) throw open_obligations(obligations.text(), open, at);
      return false;
    }
    if (const std::size_t bytes = engine().activations().offsets().live_bytes(); bytes > 0)
      throw usage_error("what is captured keeps " + std::to_string(bytes) +
                            " bytes of the step, such as a gradient, which no launch would keep",
                        at);
    if (host_transfers() != transfers) refuse_file("what the step offloads, such as activations, is", at);
    return true;
  }

  void divide([[maybe_unused]] double scale, [[maybe_unused]] where at) override {
    if constexpr (can_capture) {
      auto& all = *store_->division();
      const auto division = [&all] { all.queue_division(); };
      all.divide(scale, at, [&] { queue_part(finish_, "division and norm of gradients", division, at); });
    }
  }
  [[nodiscard]] std::span<const double> squares(where at) override { return store_->division()->squares(at); }
  // Another optimizer of the store is not in the graph.
  void queue_update(const void* optimizer, function_ref<void()> queue, [[maybe_unused]] where at) override {
    if constexpr (can_capture) {
      if (optimizer == optimizer_) return queue_part(update_, "update", queue, at);
    }
    queue();
  }

  Store* store_;
  const void* optimizer_;
  graph_use use_;
  part_type body_, finish_, update_;
  std::optional<contribution_map> recorded_;  // of the body that was captured
  update_observation observed_;
  std::uint64_t dropped_ = 0;
  std::uint64_t launches_ = 0;
};

template <class Store, class Optimizer>
step_graphs(const mesh&, Store&, Optimizer&, graph_use) -> step_graphs<Store>;

}  // namespace belay::inline BELAY_ABI
