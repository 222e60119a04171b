// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a training body runs in, beside its rank: the engine of its steps, and memory that was planned to the byte and
// outlives the body. `launch` makes it. In a rehearsal the same body runs over addresses without memory.
//
//   auto train = [](belay::rank& rank, belay::run& run) {
//     for (auto number : run.steps(100)) {
//       belay::step step{run.engine(), store};
//       ...
//     }
//   };
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/device_group.hpp"
#include "belay/comm/symmetric.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/gathers/order.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/plan.hpp"
#include "belay/train/run_memory.hpp"  // IWYU pragma: export

namespace belay::inline BELAY_ABI {

/// Whether the step that has ended is to be run again.
enum class next_step : std::uint8_t { same, another };

/// The numbers of steps, each until its step is committed: what a loop over `run.steps(n)` runs over. `Run` outlives
/// it.
template <class Run>
class step_numbers {
 public:
  struct end_type {};
  /// Where the loop is.
  class iterator {
   public:
    /// The step after `done` of `count`.
    iterator(Run& owner, std::size_t count, std::size_t done) noexcept
        : owner_(&owner), count_(count), number_(done + 1) {}
    /// The number of the step, from 1.
    [[nodiscard]] std::size_t operator*() const noexcept { return number_; }
    /// The next number, or the same again where the step is to be replayed.
    iterator& operator++() {
      if (owner_->next() == next_step::another) ++number_;
      return *this;
    }
    /// Whether all steps are committed.
    [[nodiscard]] bool operator==(end_type) const noexcept { return number_ > count_; }

   private:
    Run* owner_;
    std::size_t count_;
    std::size_t number_;
  };

  /// Steps `done` + 1 to `count` of `owner`.
  step_numbers(Run& owner, std::size_t count, std::size_t done) noexcept : owner_(&owner), count_(count), done_(done) {}

  /// For a loop.
  [[nodiscard]] iterator begin() const noexcept { return {*owner_, count_, done_}; }
  /// For a loop.
  [[nodiscard]] end_type end() const noexcept { return {}; }

 private:
  Run* owner_;
  std::size_t count_, done_;
};

/// One rank's run of a body, whose steps compute on `Engine`. On a host with the kit that a launch has unless it names
/// another it is a `belay::run`.
template <class Engine>
class run_of {
 public:
  using engine_type = Engine;
  using group_type = typename group_with_kit<group, typename Engine::kit_type>::type;
  using memory_type = typename Engine::memory_type;
  using heap_type = symmetric_heap<group>;
  /// Plans the memory of steps that have room for so many rows a dispatch; see `steps`.
  using planner = std::function<planned_run(std::uint64_t rows)>;

  /// Rank `number` of `ranks`. `again` is asked when a step must be replayed. Kernels run as `streams` says.
  run_of(int number, int ranks, planned_run planned, planner again = {}, const stream_settings& streams = {},
         run_parts<Engine> parts = {});
  run_of(const run_of&) = delete;  // bodies and stores point to it
  run_of& operator=(const run_of&) = delete;
  ~run_of();

  /// The engine of all steps. It stays where it is when a replay gives it more memory.
  [[nodiscard]] Engine& engine() noexcept { return *engine_; }
  [[nodiscard]] const Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] bool rehearsing() const noexcept { return engine_->rehearsing(); }
  [[nodiscard]] const tier_meters& meters() const noexcept { return meters_; }
  /// The processor that the body was rehearsed for.
  [[nodiscard]] computes_on computes() const noexcept { return planned_.computes; }

  /// The plan of this rank: what the rehearsal leased. Empty in a rehearsal.
  [[nodiscard]] const rank_plan& planned() const noexcept { return plan_; }
  /// The leases that last as long as the run, as rows of a plan.
  [[nodiscard]] const rank_plan& lasting() const noexcept { return leased_.rows(); }
  /// Calls `see(tier, purpose, bytes)` with what is leased now, row after row of the plan, always in the same order.
  /// The bytes of a tier add up to its meter's.
  void each_live(function_ref<void(tier, std::string_view, std::size_t)> see) const;

  /// Memory for as long as the run: `purpose` is its row in the plan. Zeroed; in a rehearsal, addresses.
  template <class T>
  [[nodiscard]] std::span<T> lease(tier where_it_is, std::size_t elements, const char* purpose,
                                   where at = where::current()) {
    const lasting_elements<T> wanted{where_it_is, elements, at};
    return wanted.in(lease_bytes(where_it_is, wanted.bytes, wanted.mark, purpose, at));
  }

  /// Memory for as long as the run, where ranks have shards of different sizes: `elements_of(rank)` elements for each
  /// rank of the world. `purpose` is its row in the plan. Zeroed; in a rehearsal, addresses. A rehearsal computes the
  /// plans of other ranks with `elements_of`. Memory that is leased so after a step, the next steps have beside all
  /// that the first had.
  template <class T, std::invocable<int> ElementsOf>
  [[nodiscard]] std::span<T> lease_shard(tier where_it_is, ElementsOf&& elements_of, const char* purpose,
                                         where at = where::current()) {
    const lasting_elements<T> wanted{where_it_is, elements_of(number_), at};
    note_shards(where_it_is, [&](int rank) { return elements_of(rank) * sizeof(T); });
    return wanted.in(lease_bytes(where_it_is, wanted.bytes, wanted.mark, purpose, at));
  }

  /// A shard of `lease_reached`, in memory that the ranks of `group` reach by address, where they
  /// can: `ranks` then has the first element of each one's lease, in group order. In a rehearsal,
  /// elsewhere, where nobody has any elements, and in lower tiers beside a device, `ranks` is empty. Collective over
  /// the group.
  template <class T>
  struct reached_lease {
    std::span<T> own;             // this rank's elements
    std::vector<const T*> ranks;  // the first of each rank's
  };
  template <class T, std::invocable<int> ElementsOf>
  [[nodiscard]] reached_lease<T> lease_reached(tier where_it_is, const belay::group& group, ElementsOf&& elements_of,
                                               const char* purpose, where at = where::current()) {
    const lasting_elements<T> wanted{where_it_is, elements_of(number_), at};
    std::vector<std::byte*> ranks;
    const auto bytes_of = [&](int rank) { return elements_of(rank) * sizeof(T); };
    reached_lease<T> out{wanted.in(reached_bytes(where_it_is, group, bytes_of, wanted.mark, purpose, ranks, at)), {}};
    for (std::byte* const first : ranks) out.ranks.push_back(reinterpret_cast<const T*>(first));
    return out;
  }

  /// The lasting leases of a tier for a purpose.
  [[nodiscard]] std::vector<lasting_lease> leases_of(tier where_it_is, std::string_view purpose) const;
  /// Bytes that a lasting lease has on rank `rank` of the world; in a run, for its own rank alone.
  [[nodiscard]] std::size_t bytes_on(const lasting_lease& leased, int rank) const;
  /// Takes `part` of a lasting lease, whole cache lines, off the tier's meter, and gives its pages back.
  void vacate(tier where_it_is, std::span<std::byte> part) noexcept;
  /// Counts `part`, which was vacated, again: it is written from here on.
  void occupy(tier where_it_is, std::span<std::byte> part) noexcept;

  /// Bytes that something else has taken in a tier for as long as the run, such as those of a file: `bytes_of(rank)`
  /// for each rank of the world. They are counted, and planned, as leases are.
  void charge_shard(tier where_it_is, function_ref<std::size_t(int)> bytes_of, const char* purpose,
                    file_bytes of_file = file_bytes::on_disk);

  /// Keeps `what` until every body has ended, for peers that read it while a communication of this rank is under way,
  /// and for what this rank's streams have queued.
  void keep(std::shared_ptr<const void> what) { kept_.push_back(std::move(what)); }

  /// Symmetric memory of `group`, for an expert exchange. Collective. It grows when a step is replayed.
  [[nodiscard]] heap_type& windows(const belay::group& group, where at = where::current());

  /// Memory for leases that begin and end within a step, beside the engine's; `purpose` is its row in the plan. What is
  /// released is free in the order of the compute stream, in a lower tier in that of the copies. It stays where it is,
  /// and grows when a step is replayed. In tier file it has addresses alone, of bytes of a file.
  [[nodiscard]] arena<memory_type>& step_memory(const char* purpose, tier in = tier::device,
                                                file_bytes of_file = file_bytes::on_disk);

  /// For those who bring back what calls keep: the order in which they do, as it was rehearsed. It stays where it is.
  [[nodiscard]] rehearsed_order& rehearsed_returns();

  /// For stores that divide parameters: the order in which a step gathers layers, as it was rehearsed; in the rehearsal
  /// that finds it out, none.
  [[nodiscard]] std::size_t add_gathers();
  [[nodiscard]] gather_plan planned_gathers(std::size_t store) const;
  void note_gathers(std::size_t store, phase in, const gather_order& found);
  void note_micro_batches(std::size_t store, std::size_t count) { gathers_[store].micro_batches = count; }
  [[nodiscard]] const std::vector<gather_plan>& gathers() const noexcept { return gathers_; }

  /// Calls `print(mean_loss)`, or `print(step_summary)`, on rank 0 alone, and never in a rehearsal. `result` is the
  /// token of a committed step, or an evaluation, which has the mean alone.
  template <class Result, class Print>
    requires(std::invocable<Print&, double> || std::invocable<Print&, const step_summary&>)
  void(report)(const Result& result, Print&& print) {  // so that no macro of that name takes its arguments
    if (rehearsing() || number_ != 0) return;
    if constexpr (std::invocable<Print&, const step_summary&>)
      print(result.summary());
    else if constexpr (requires { result.summary(); })
      print(result.summary().mean_loss());
    else
      print(result.mean_loss());
  }

  /// The numbers 1 to `count`, or those after `done`, each until its step is committed: one that must be replayed comes
  /// again, with room for what overflowed; one whose refusal was not read (`belay::refused(outcome)`) is thrown as
  /// `error`. When the next number is there, all that the step has queued is done. A rehearsal has one step.
  [[nodiscard]] step_numbers<run_of> steps(std::size_t count, std::size_t done = 0) noexcept {
    return {*this, rehearsing() && count > done + 1 ? done + 1 : count, done};
  }

  /// Whether `number` is a multiple of `count`. In a rehearsal it is, so that what a run does only at times, such as an
  /// evaluation, is planned too.
  [[nodiscard]] bool every(std::size_t count, std::size_t number) const noexcept {
    return rehearsing() || (count > 0 && number % count == 0);
  }

  /// Gives steps and passes room for `rows` rows a dispatch, in the objects that there are: plans the memory, and
  /// replaces activations and symmetric memory. Collective, between steps; `steps` and `evaluate` call it.
  void make_room(std::uint64_t rows, where at = where::current());

  /// The leases of this run, and the regions that a run of the same body needs, on this rank or on one that runs the
  /// body alike. For `rehearse`.
  [[nodiscard]] planned_run leased() const { return leased_by(number_); }
  [[nodiscard]] planned_run leased_by(int rank) const;

 private:
  friend class step_numbers<run_of>;
  struct window {
    explicit window(const belay::group& of) : ranks(of) {}
    group ranks;
    std::optional<heap_type> heap;
  };
  struct within_steps {
    const char* purpose;
    arena<memory_type> leases;
    file_bytes of_file;
  };
  // Elements that are leased for as long as the run.
  template <class T>
  struct lasting_elements {
    std::size_t count;
    std::size_t bytes;
    lease_mark mark = arena<memory_type>::template mark_of<T>();

    lasting_elements(tier where_it_is, std::size_t elements, where at)
        : count(elements), bytes(lasting_bytes(where_it_is, elements, sizeof(T), at)) {}
    [[nodiscard]] std::span<T> in(std::byte* memory) const { return {reinterpret_cast<T*>(memory), count}; }
  };
  static constexpr std::size_t most_leases = 16384;  // of a step, beside the engine's
  static constexpr const char* of_smaller_step =
      ": it was planned for the first step, which a rehearsal runs: that was smaller, so begin with the largest or let "
      "the step be as large where run.rehearsing(); or handles of this step were lost, which a checked build names";

  // Throws usage_error where they are more than can be addressed.
  [[nodiscard]] static std::size_t lasting_bytes(tier where_it_is, std::size_t elements, std::size_t size, where at);
  [[nodiscard]] std::byte* lease_bytes(tier where_it_is, std::size_t wanted, lease_mark mark, const char* purpose,
                                       where at);
  // In a rehearsal: the shards of the other ranks, and a peak that has this rank's beside what a step had before it.
  void note_shards(tier where_it_is, function_ref<std::size_t(int)> bytes_of);
  [[nodiscard]] std::byte* reached_bytes(tier where_it_is, const belay::group& group,
                                         function_ref<std::size_t(int)> bytes_of, lease_mark mark, const char* purpose,
                                         std::vector<std::byte*>& ranks, where at);

  void open_window(std::size_t index, std::size_t bytes, where at);

  // What depends on the rows of a dispatch. What there was is freed first.
  void grow_step_memory(std::size_t index);

  [[nodiscard]] next_step next();

  int number_;
  int ranks_;
  rank_plan plan_;
  run_memory planned_;
  planner again_;
  run_parts<Engine> parts_;
  tier_meters meters_;
  std::array<std::optional<arena<memory_type>>, tier_count> persistent_;
  lease_chain leases_;
  lasting_leases leased_;
  // These outlive the streams, whose work may point to them.
  std::vector<std::shared_ptr<const void>> kept_;
  std::vector<std::unique_ptr<within_steps>> of_steps_;
  std::vector<std::unique_ptr<heap_type>> reached_;
  std::vector<std::unique_ptr<arena<memory_type>>> unreached_;  // what a rank without reach has instead
  std::optional<Engine> engine_;
  std::vector<std::unique_ptr<window>> windows_;
  std::vector<gather_plan> gathers_;
  std::vector<std::unique_ptr<rehearsed_order>> returns_;
};

/// The run of a rank that computes on a host, with the kit of a launch that names none. A class, so that what is made
/// of it has a short name in messages of a compiler.
class run final : public run_of<host_engine> {
 public:
  using run_of::run_of;
};

/// The run that a body is called with, whose steps compute on `Engine`.
template <class Engine>
struct run_with {
  using type = run_of<Engine>;
};
template <>
struct run_with<host_engine> {
  using type = run;
};

}  // namespace belay::inline BELAY_ABI

#include "belay/train/run.ipp"  // IWYU pragma: export
