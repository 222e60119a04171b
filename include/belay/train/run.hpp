// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a training body runs in, beside its rank: the engine of its steps, and memory that was planned to the byte and
// outlives the body. `launch` makes it. In a rehearsal the same body runs over addresses without memory.
//
//   auto train = [](auto& rank, auto& run) {
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

#include "belay/comm/symmetric.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/gathers/order.hpp"
#include "belay/step/call_order.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/phase.hpp"
#include "belay/train/lasting_leases.hpp"  // IWYU pragma: export
#include "belay/train/plan.hpp"
#include "belay/train/run_memory.hpp"  // IWYU pragma: export
#include "belay/train/step_numbers.hpp"

namespace belay::inline BELAY_ABI {

/// One rank's run of a body. `Rank` is a backend's rank, or that of a rehearsal.
template <class Rank, class Engine>
class run {
 public:
  using engine_type = Engine;
  using group_type = typename Rank::group_type;
  using memory_type = typename Engine::memory_type;
  using heap_type = typename heap_of<group_type>::type;
  /// Plans the memory of steps that have room for so many rows a dispatch; see `steps`.
  using planner = std::function<planned_run(std::uint64_t rows)>;

  /// Rank `number` of `ranks`. `again` is asked when a step must be replayed. Kernels run as `streams` says.
  run(int number, int ranks, planned_run planned, planner again = {}, const stream_settings& streams = {},
      run_parts<Engine> parts = {})
      : number_(number),
        ranks_(ranks),
        plan_(std::move(planned.plan)),
        planned_(std::move(planned.memory)),
        again_(again),
        parts_(std::move(parts)) {
    parts_.addresses_only = streams.policy == stream_policy::rehearsal;
    parts_.make(engine_, planned_.activations, meters_[tier::device], streams, number);
    leased_.add({tier::device, "findings", Engine::findings_bytes, Engine::findings_bytes});
    meters_[tier::device].add(Engine::findings_bytes);
    if (!rehearsing()) engine_->activations().say_when_full(of_smaller_step);
    if (rehearsing() || planned_.workspace == 0) return;
    [[maybe_unused]] const auto workspace = lease<std::byte>(tier::device, planned_.workspace, workspace_row);
    if constexpr (requires { engine_->kit().use_workspace(workspace); }) engine_->kit().use_workspace(workspace);
  }
  run(const run&) = delete;  // bodies and stores point to it
  run& operator=(const run&) = delete;

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
  template <std::invocable<tier, std::string_view, std::size_t> See>
  void each_live(See&& see) const {
    const std::vector<plan_item>& rows = lasting().items();
    for (std::size_t row = 0; row < rows.size(); ++row)
      see(rows[row].where_it_is, std::string_view(rows[row].purpose), leased_.live_bytes(row));
    for (const auto& one : of_steps_)
      see(one->leases.where_it_is(), std::string_view(one->purpose), one->leases.offsets().live_bytes());
    see(tier::device, std::string_view("activations"), engine_->activations().offsets().live_bytes());
    if (planned_.owed) see(tier::device, std::string_view("owed activations"), engine_->owed().live_bytes());
    std::size_t windows = 0;
    for (const auto& one : windows_) windows += one->heap->live_bytes();
    see(tier::device, std::string_view("expert windows"), windows);
  }

  /// Memory for as long as the run: `purpose` is its row in the plan. Zeroed; in a rehearsal, addresses.
  template <class T>
  [[nodiscard]] std::span<T> lease(tier where_it_is, std::size_t elements, const char* purpose,
                                   where at = where::current()) {
    auto& region = persistent_[static_cast<std::size_t>(where_it_is)];
    const std::size_t most = planned_.persistent[static_cast<std::size_t>(where_it_is)];
    if (!region)
      region.emplace(where_it_is, parts_.zeroed_region(*engine_, where_it_is, most), 4096, meters_[where_it_is]);
    const auto memory = region->template lease<T>(extents<1>{elements}, leases_, at);
    const std::size_t bytes = leased_size(elements * sizeof(T));
    leased_.add({where_it_is, purpose, bytes, bytes}, std::as_writable_bytes(memory.flat()));
    return {memory.data(), elements};
  }

  /// Memory for as long as the run, where ranks have shares of different sizes: `elements_of(rank)` elements for each
  /// rank of the world. `purpose` is its row in the plan. Zeroed; in a rehearsal, addresses. A rehearsal computes the
  /// plans of other ranks with `elements_of`. Memory that is leased so after a step, the next steps have beside all
  /// that the first had.
  template <class T, std::invocable<int> ElementsOf>
  [[nodiscard]] std::span<T> lease_share(tier where_it_is, ElementsOf&& elements_of, const char* purpose,
                                         where at = where::current()) {
    const std::size_t elements = elements_of(number_);
    if (rehearsing()) {
      leased_.add_shares(ranks_, [&](int rank) { return elements_of(rank) * sizeof(T); });
      if (engine_->step_number() > 0)
        meters_[where_it_is].expect_peak(meters_[where_it_is].peak_bytes() + leased_size(elements * sizeof(T)));
    }
    return lease<T>(where_it_is, elements, purpose, at);
  }

  /// A share of `lease_reached`, in memory that the ranks of `group` reach by address, where they
  /// can: `ranks` then has the first element of each one's lease, in group order. In a rehearsal,
  /// elsewhere, where nobody has any elements, and in lower tiers beside a device, `ranks` is empty. Collective over
  /// the group.
  template <class T>
  struct reached_lease {
    std::span<T> own;             // this rank's elements
    std::vector<const T*> ranks;  // the first of each rank's
  };
  template <class T, std::invocable<int> ElementsOf>
  [[nodiscard]] reached_lease<T> lease_reached(tier where_it_is, const group_type& group, ElementsOf&& elements_of,
                                               const char* purpose, where at = where::current()) {
    std::size_t most = 0;  // each rank has as much address space
    for (int rank = 0; rank < ranks_; ++rank) most = greater_of(most, leased_size(elements_of(rank) * sizeof(T)));
    if (most == 0) return {lease_share<T>(where_it_is, elements_of, purpose, at), {}};
    const std::size_t elements = elements_of(number_);
    if (rehearsing()) {
      const std::span<T> own = lease_share<T>(where_it_is, elements_of, purpose, at);
      leased_.note_reach(most);
      return {own, {}};
    } else {
      const std::size_t bytes = leased_size(elements * sizeof(T));
      leased_.add({where_it_is, purpose, bytes, most});
      if constexpr (directly_addressable<group_type>) {
        if (addresses_peers(group) && (where_it_is == tier::device || !works_on_device<group_type>)) {
          const symmetric_heap_options options{.bytes = most, .max_slots = 1, .meter = &meters_[where_it_is], .at = at};
          reached_.push_back(std::make_unique<heap_type>(group, options, at));
          const auto slot = reached_.back()->lease(elements * sizeof(T), purpose, at);
          reached_lease<T> out{{reinterpret_cast<T*>(slot.local()), elements}, {}};
          for (int peer = 0; peer < group.size(); ++peer)
            out.ranks.push_back(reinterpret_cast<const T*>(slot.at(peer)));
          return out;
        }
      }
      unreached_.push_back(std::make_unique<arena<memory_type>>(
          where_it_is, parts_.zeroed_region(*engine_, where_it_is, bytes), 1, meters_[where_it_is]));
      const auto memory = unreached_.back()->template lease<T>(extents<1>{elements}, leases_, at);
      return {{memory.data(), elements}, {}};
    }
  }

  /// The lasting leases of a tier for a purpose.
  [[nodiscard]] std::vector<lasting_lease> leases_of(tier where_it_is, std::string_view purpose) const {
    return leased_.of(where_it_is, purpose);
  }
  /// Bytes that a lasting lease has on rank `rank` of the world; in a run, for its own rank alone.
  [[nodiscard]] std::size_t bytes_on(const lasting_lease& leased, int rank) const {
    const rank_shares* const shares = leased_.shares_of(leased.item);
    return shares == nullptr ? leased.memory.size() : shares->bytes[static_cast<std::size_t>(rank)];
  }
  /// Takes `part` of a lasting lease, whole cache lines, off the tier's meter, and gives its pages back.
  void vacate(tier where_it_is, std::span<std::byte> part) noexcept {
    meters_[where_it_is].remove(leased_size(part.size()));
    leased_.vacate(part);
    if constexpr (!device_region<memory_type>)
      if (!rehearsing()) discard_pages(part.data(), part.size());
  }
  /// Counts `part`, which was vacated, again: it is written from here on.
  void occupy(tier where_it_is, std::span<std::byte> part) noexcept {
    meters_[where_it_is].add(leased_size(part.size()));
    leased_.occupy(part);
  }

  /// Bytes that something else has taken in a tier for as long as the run, such as those of a file: `bytes_of(rank)`
  /// for each rank of the world. They are counted, and planned, as leases are.
  template <std::invocable<int> BytesOf>
  void charge_share(tier where_it_is, BytesOf&& bytes_of, const char* purpose,
                    file_bytes of_file = file_bytes::on_disk) {
    if (rehearsing()) leased_.add_shares(ranks_, bytes_of);
    const std::size_t bytes = leased_size(bytes_of(number_));
    leased_.add({where_it_is, purpose, bytes, bytes, of_file});
    meters_[where_it_is].add(bytes);
    meters_[where_it_is].count_allocation();
  }

  /// Keeps `what` until every body has ended, for peers that read it while a communication of this rank is under way,
  /// and for what this rank's streams have queued.
  void keep(std::shared_ptr<const void> what) { kept_.push_back(std::move(what)); }

  /// Symmetric memory of `group`, for an expert exchange. Collective. It grows when a step is replayed.
  [[nodiscard]] heap_type& windows(const group_type& group, where at = where::current()) {
    const std::size_t bytes = rehearsing() ? planned_.activations : planned_.windows.at(windows_.size());
    windows_.push_back(std::make_unique<window>(group));
    open_window(windows_.size() - 1, bytes, at);
    return *windows_.back()->heap;
  }

  /// Memory for leases that begin and end within a step, beside the engine's; `purpose` is its row in the plan. What is
  /// released is free in the order of the compute stream, in a lower tier in that of the copies. It stays where it is,
  /// and grows when a step is replayed. In tier file it has addresses alone, of bytes of a file.
  [[nodiscard]] arena<memory_type>& step_memory(const char* purpose, tier in = tier::device,
                                                file_bytes of_file = file_bytes::on_disk) {
    const std::size_t bytes = rehearsing() ? planned_.activations : planned_.of_steps.at(of_steps_.size());
    of_steps_.push_back(std::make_unique<within_steps>(
        within_steps{purpose, {in, parts_.region(in, bytes), most_leases, meters_[in]}, of_file}));
    if (!rehearsing()) of_steps_.back()->leases.say_when_full(of_smaller_step);
    if (in == tier::device)
      engine_->adopt(of_steps_.back()->leases);
    else
      of_steps_.back()->leases.name_lost_of(engine_->obligations());
    return of_steps_.back()->leases;
  }

  /// For those who bring back what calls keep: the order in which they do, as it was rehearsed. It stays where it is.
  [[nodiscard]] rehearsed_order& rehearsed_returns() {
    returns_.push_back(std::make_unique<rehearsed_order>());
    if (returns_.size() <= planned_.returns.size()) returns_.back()->expected = planned_.returns[returns_.size() - 1];
    return *returns_.back();
  }

  /// For stores that divide parameters: the order in which a step gathers layers, as it was rehearsed; in the rehearsal
  /// that finds it out, none.
  [[nodiscard]] std::size_t add_gathers() {
    gathers_.emplace_back();
    return gathers_.size() - 1;
  }
  [[nodiscard]] gather_plan planned_gathers(std::size_t store) const {
    gather_plan out;
    if (store < planned_.gathers.size()) out = planned_.gathers[store];
    return out;
  }
  void note_gathers(std::size_t store, phase in, const gather_order& found) {
    gathers_[store][static_cast<std::size_t>(in)] = found;
  }
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
  [[nodiscard]] step_numbers<run> steps(std::size_t count, std::size_t done = 0) noexcept {
    return {*this, rehearsing() && count > done + 1 ? done + 1 : count, done};
  }

  /// Whether `number` is a multiple of `count`. In a rehearsal it is, so that what a run does only at times, such as an
  /// evaluation, is planned too.
  [[nodiscard]] bool every(std::size_t count, std::size_t number) const noexcept {
    return rehearsing() || (count > 0 && number % count == 0);
  }

  /// Gives steps and passes room for `rows` rows a dispatch, in the objects that there are: plans the memory, and
  /// replaces activations and symmetric memory. Collective, between steps; `steps` and `evaluate` call it.
  void make_room(std::uint64_t rows, where at = where::current()) {
    rows = greater_of(rows, engine_->room());
    if (again_) {
      planned_run grown = again_(rows);
      plan_ = std::move(grown.plan);
      planned_ = std::move(grown.memory);
      engine_->use(parts_.region(tier::device, 0));  // what there was is freed first
      engine_->use(parts_.region(tier::device, planned_.activations));
      engine_->activations().say_when_full(of_smaller_step);
      for (std::size_t i = 0; i < windows_.size(); ++i) open_window(i, planned_.windows.at(i), at);
      for (std::size_t i = 0; i < of_steps_.size(); ++i) grow_step_memory(i);
    }
    engine_->make_room(rows);
  }

  /// The leases of this run, and the regions that a run of the same body needs, on this rank or on one that runs the
  /// body alike. For `rehearse`.
  [[nodiscard]] planned_run leased() const { return leased_by(number_); }
  [[nodiscard]] planned_run leased_by(int rank) const {
    planned_run out;
    out.memory.computes = planned_.computes;
    if (rehearsing()) add_workspace(out, engine_->kit().workspace_bytes());
    for (std::size_t i = 0; i < lasting().items().size(); ++i) {
      plan_item item = lasting().items()[i];
      const rank_shares* const shares = leased_.shares_of(i);
      if (shares != nullptr) item.bytes = shares->bytes[static_cast<std::size_t>(rank)];
      const std::size_t reached = shares == nullptr ? 0 : shares->reached;
      item.capacity = greater_of(item.bytes, reached);
      out.plan.add(item);
      if (reached == 0) out.memory.persistent[static_cast<std::size_t>(item.where_it_is)] += item.bytes;
    }
    std::size_t window_peak = 0, window_extent = 0;
    for (const auto& one : windows_) {
      window_peak += one->heap->peak_bytes();
      window_extent += one->heap->extent_bytes();
      out.memory.windows.push_back(one->heap->extent_bytes());
    }
    out.memory.activations = engine_->activations().offsets().extent_bytes();
    // Of each tier's peak; what the others have at peaks of their own is not counted twice.
    std::array<std::size_t, tier_count> left{};
    for (std::size_t t = 0; t < tier_count; ++t) {
      const std::size_t peak = meters_[static_cast<tier>(t)].peak_bytes();
      left[t] = peak - lesser_of(peak, lasting().peak_bytes(static_cast<tier>(t)));  // less, where a part was vacated
    }
    std::size_t& rest = left[static_cast<std::size_t>(tier::device)];
    rest -= window_peak;
    for (const auto& one : of_steps_) {
      const auto& [purpose, leases, of_file] = *one;
      std::size_t& of_tier = left[static_cast<std::size_t>(leases.where_it_is())];
      const std::size_t peak = lesser_of(of_tier, leases.offsets().peak_bytes());
      out.memory.of_steps.push_back(leases.offsets().extent_bytes());
      out.plan.add({leases.where_it_is(), purpose, peak, greater_of(peak, out.memory.of_steps.back()), of_file});
      of_tier -= peak;
    }
    const std::size_t owed = lesser_of(rest, engine_->owed().peak_bytes());
    rest -= owed;
    out.plan.add(tier::device, "activations", rest, out.memory.activations);
    out.memory.owed = owed > 0;
    if (out.memory.owed) out.plan.add(tier::device, "owed activations", owed);
    out.memory.gathers = gathers_;
    for (const auto& each : returns_) out.memory.returns.push_back(each->found);
    if (!windows_.empty()) out.plan.add(tier::device, "expert windows", window_peak, window_extent);
    return out;
  }

 private:
  friend class step_numbers<run>;
  struct window {
    explicit window(const group_type& ranks) : group(ranks) {}
    group_type group;
    std::optional<heap_type> heap;
  };
  struct within_steps {
    const char* purpose;
    arena<memory_type> leases;
    file_bytes of_file;
  };
  static constexpr std::size_t most_leases = 16384;  // of a step, beside the engine's
  static constexpr const char* of_smaller_step =
      ": it was planned for the first step, which a rehearsal runs: that was smaller, so begin with the largest or let "
      "the step be as large where run.rehearsing(); or handles of this step were lost, which a checked build names";

  void open_window(std::size_t index, std::size_t bytes, where at) {
    window& one = *windows_[index];
    const symmetric_heap_options options{
        .bytes = bytes, .meter = &meters_[tier::device], .at = at, .when_full = rehearsing() ? "" : of_smaller_step};
    one.heap.emplace(heap_of<group_type>::ranks(one.group), options, at);
    engine_->adopt(*one.heap);
  }

  // What depends on the rows of a dispatch. What there was is freed first.
  void grow_step_memory(std::size_t index) {
    arena<memory_type>& leases = of_steps_[index]->leases;
    const std::size_t bytes = planned_.of_steps.at(index);
    if (leases.memory().size_bytes() == bytes) return;
    const tier of = leases.where_it_is();
    leases.open_addresses();
    leases = {of, parts_.region(of, 0), most_leases, meters_[of]};
    leases = {of, parts_.region(of, bytes), most_leases, meters_[of]};
    leases.say_when_full(of_smaller_step);
    if (of == tier::device)
      engine_->adopt(leases);
    else
      leases.name_lost_of(engine_->obligations());
  }

  [[nodiscard]] next_step next() {
    engine_->synchronize(engine_->step_site());  // the optimizer's update
    engine_->expect_refusal_read();
    if (engine_->last_end() != end_of_step::replay) return next_step::another;
    make_room(engine_->needed_rows());
    return next_step::same;
  }

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

}  // namespace belay::inline BELAY_ABI
