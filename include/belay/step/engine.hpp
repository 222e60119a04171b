// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The engine is what all steps of one rank share: memory for activations, a kit that computes, and the ledger. It knows
// no ranks. `host_engine` computes. Over addresses without memory, with a stream of the policy `rehearsal`, its peak
// and extent are the plan.
//
//   belay::tier_meters meters;
//   belay::host_engine engine(belay::host_pages(bytes), meters[belay::tier::device]);
//   belay::step step{engine};
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/span_log.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/copy_stream.hpp"
#include "belay/device/findings.hpp"
#include "belay/device/host_access.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/lease_owners.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/poison.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/tier.hpp"
#include "belay/step/call_spans.hpp"
#include "belay/step/commit.hpp"
#include "belay/step/flow_pair.hpp"
#include "belay/step/phase.hpp"
#include "belay/step/rehearsal_watch.hpp"
#include "belay/step/weight_notes.hpp"

namespace belay::inline BELAY_ABI {

/// The bytes of a trainer's own memory that one rank's owed backwards say they keep. They are no lease, and count as
/// one: in the meter of the device's tier, and in the row "owed activations" of a plan. An owed backward opens its
/// bytes and closes them; the end of a step closes all.
class owed_bytes {
 public:
  /// `meter` outlives this.
  explicit owed_bytes(tier_meter& meter) noexcept : meter_(&meter) {}

  /// An owed backward begins, or ends.
  void open(std::size_t bytes) noexcept {
    live_ += bytes;
    if (live_ > peak_) peak_ = live_;
    meter_->add(bytes);
  }
  void close(std::size_t bytes) noexcept {
    live_ -= bytes;
    meter_->remove(bytes);
  }
  /// The step has ended.
  void clear() noexcept { close(live_); }

  /// Bytes of what is owed now, and the most there were.
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }

 private:
  tier_meter* meter_;
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
};

/// The type of an engine's watch, which is told which layer's call is running.
template <class Stream>
struct watch_of {
  using type = no_watch;
};
template <traced_stream Stream>
struct watch_of<Stream> {
  using type = switched_watch<Stream>;
};

/// The type that lets the host see an engine's memory, where it does not address that itself; else empty.
template <class Memory, class Stream>
struct access_of {
  struct type {};
};
template <device_region Memory, class Stream>
struct access_of<Memory, Stream> {
  using pinned = decltype(std::declval<const Memory&>().allocate_host(std::size_t{}, where()));
  using type = device_access<Stream, pinned>;
};

/// Findings of one rank's forward-only passes since they were last asked for.
struct pass_findings {
  /// Obligations that the pass left, its loss, and the first wrong index.
  std::uint64_t open_obligations = 0;
  std::uint64_t needed_rows = 0;  // rows that a rank was to receive in one dispatch; 0 without overflow
  std::uint64_t count = 0;        // of targets or samples in `loss`
  double loss = 0;
  std::uint64_t wrong = 0;  // indices and rows that are none
  kernel::finding first_wrong;
};

template <memory_region Memory, compute_kit<float> Kit>
class engine {
 public:
  using memory_type = Memory;
  using kit_type = Kit;
  using stream_type = typename Kit::stream_type;

  /// All leases of steps come from the region `activations`. `meter` is that of its tier, and outlives the engine. At
  /// most `max_leases` leases and `max_obligations` obligations are live in one step.
  engine(Memory activations, tier_meter& meter, std::size_t max_leases = 16384, std::size_t max_obligations = 4096)
    requires std::default_initializable<Kit>;
  /// All leases of steps come from the region `activations`. The kit's stream runs as `streams` says: that of rank
  /// `rank`. `meter` is that of its tier, and outlives the engine. At most `max_leases` leases and `max_obligations`
  /// obligations are live in one step.
  engine(Memory activations, tier_meter& meter, const stream_settings& streams, int rank,
         std::size_t max_leases = 16384, std::size_t max_obligations = 4096)
    requires std::constructible_from<Kit, const stream_settings&, int>;

  /// All leases of steps come from the region `activations`, memory of the device of `kit`, which the caller has made.
  /// Memory that is free holds `left`. `meter` is that of its tier, and outlives the engine. At most `max_leases`
  /// leases and `max_obligations` obligations are live in one step.
  engine(Memory activations, tier_meter& meter, Kit kit, freed_memory left = freed_by_default,
         std::size_t max_leases = 16384, std::size_t max_obligations = 4096)
    requires std::move_constructible<Kit>;

  engine(const engine&) = delete;  // steps, handles and runs point to it
  engine& operator=(const engine&) = delete;
  ~engine();

  /// Activations, open obligations, and what computes. They live as long as the run.
  [[nodiscard]] arena<Memory>& activations() noexcept { return arena_; }
  [[nodiscard]] const arena<Memory>& activations() const noexcept { return arena_; }
  [[nodiscard]] belay::ledger& obligations() noexcept { return *ledger_; }
  [[nodiscard]] const belay::ledger& obligations() const noexcept { return *ledger_; }
  /// The ledger with its lifetime, for a handle that may be destroyed after this engine.
  [[nodiscard]] const std::shared_ptr<belay::ledger>& shared_obligations() const noexcept { return ledger_; }
  /// Bytes of a trainer's own memory that owed backwards keep.
  [[nodiscard]] owed_bytes& owed() noexcept { return owed_; }
  [[nodiscard]] const owed_bytes& owed() const noexcept { return owed_; }
  /// Additions that backwards in two halves have noted for their second ones.
  [[nodiscard]] weight_note_pool& notes() noexcept { return notes_; }
  [[nodiscard]] const weight_note_pool& notes() const noexcept { return notes_; }
  /// Holds the lease of steps that has `address` in it until it is let go, whoever ends it before: of activations, of
  /// other memory of steps, of a heap in which slots are leased in this step. Nothing is held where none has it.
  [[nodiscard]] held_lease hold(const void* address);
  [[nodiscard]] Kit& kit() noexcept { return kit_; }
  [[nodiscard]] const Kit& kit() const noexcept { return kit_; }
  /// The kit's stream.
  [[nodiscard]] stream_type& compute() noexcept { return kit_.stream(); }

  using copies_type = copy_stream<stream_type>;
  /// The stream of copies between tiers. The first call makes it: in a body, before its first step.
  [[nodiscard]] copies_type& copies();
  /// How the host sees the memory of a device; null where it addresses that itself. The first call makes it, with a
  /// stream: in a body, before its first step. Throws backend_error.
  [[nodiscard]] const host_access* access([[maybe_unused]] where at = where::current());
  /// Whether something has asked for it.
  [[nodiscard]] bool has_copies() const noexcept { return copies_ != nullptr; }
  /// Of the copies so far.
  [[nodiscard]] copy_times times_of_copies() const noexcept { return has_copies() ? copies_->times() : copy_times{}; }
  /// Returns when all that the streams have queued is over; throws the first failure of it.
  void synchronize(where at = where::current());

  /// Runs `work()` on the calling thread, once all that the kit's stream has queued is over. A rehearsal does not run
  /// it.
  template <std::invocable Work>
  void run_on_host(Work&& work, where at = where::current()) {
    belay::synchronize(compute(), at);
    if (!rehearsing()) work();
  }

  /// Runs `first()` and `second()` in turns, which change where their layers call `hand_over`; see step/flow_pair.hpp.
  /// `changes(turn)` is called at the end of each turn. Throws what they throw; usage_error within another pair.
  void run_beside(flow_pair& pair, function_ref<void()> first, function_ref<void()> second,
                  function_ref<void(pair_turn)> changes, where at);
  /// For a layer, or an exchange, that has started a communication and lets the compute stream wait for it next: where
  /// two flows are under way, the other one queues its work before. Between a call's start of a communication and its
  /// wait; what the call has leased stays its own meanwhile. Without a pair it does nothing.
  void hand_over() {
    if (pair_ != nullptr) [[unlikely]]
      change_flow();
  }

  /// Is told which layer's call is running. On streams of the host it is a span of a trace; a rehearsal's watch
  /// explains a fault with it, once `watch().explain_faults()` has asked for that; `no_watch` ignores it.
  using watch_type = typename watch_of<stream_type>::type;
  [[nodiscard]] watch_type& watch() noexcept { return watch_; }

  /// Calls of layers, copies and waits are spans of `log` from now on, with the live bytes of `meters`; null: of none.
  /// Log and meters outlive what is queued meanwhile, and the engine stays where it is. Between steps.
  void trace_into(span_log* log, const tier_meters* meters = nullptr)
    requires traced_stream<stream_type>;
  /// The log of the step that is traced, or null.
  [[nodiscard]] span_log* spans() const noexcept {
    if constexpr (traced_stream<stream_type>)
      return watch_.log();
    else
      return nullptr;
  }

  /// The number of the step that runs or ran last, from 1; 0 before the first.
  [[nodiscard]] std::uint64_t step_number() const noexcept { return step_number_; }
  /// Changes when a step begins and when it ends. The memory of a handle from another epoch has been reclaimed.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }

  /// Steps run in `train`; see step/phase.hpp.
  [[nodiscard]] phase current_phase() const noexcept { return phase_; }
  /// For `phase_switch` only. Throws usage_error while a step or pass is open.
  void enter(phase next, where at);
  /// Throws usage_error while a step or pass of this engine is open.
  void expect_between_steps(where at) const;

  /// Continues the step numbers of an engine that this one replaces: an optimizer refuses a token whose number is not
  /// above its last one's.
  void continue_after(std::uint64_t step_number) noexcept { step_number_ = step_number; }

  /// Whether what is free holds nothing that looks like a number: under `adversarial`, or where it was asked for.
  [[nodiscard]] bool poisons() const noexcept { return left_ == freed_memory::poisoned; }
  /// Treats `other`, from which leases of steps come too and which outlives the steps, as it treats its own memory:
  /// leases are the compute stream's. What peers address, such as a symmetric heap, is not poisoned.
  template <class Leases>
  void adopt(Leases& other) {
    if constexpr (clocked_stream<stream_type>) other.follow(compute().clock());
    if constexpr (std::same_as<Leases, arena<Memory>>) {
      other.name_lost_of(*ledger_);
      if (&other != &arena_ && std::find(of_steps_.begin(), of_steps_.end(), &other) == of_steps_.end())
        of_steps_.push_back(&other);
      if (left_ != freed_memory::as_it_was && !rehearsing()) other.poison_in(kit_.stream(), left_, owners_);
    } else if constexpr (requires { other.hold(nullptr); }) {
      const auto is_known = [&](const lease_holder& one) { return one.owner == &other; };
      if (std::none_of(heaps_.begin(), heaps_.end(), is_known)) heaps_.push_back(lease_holder::of(other));
    }
  }
  /// Whether `address` is in memory that is leased for steps alone.
  [[nodiscard]] bool is_of_steps(const void* address) const noexcept;
  /// The owner of memory that was read after it had been given back, where a number that is not finite says it, or an
  /// index that is none; else empty. In checked builds, and as far as what has computed keeps the payload of a NaN.
  [[nodiscard]] std::string given_back(double found) const;
  [[nodiscard]] std::string given_back(std::int64_t index) const;

  /// Leases come from `activations` from now on, and the region before is freed. Between steps: numbers, epoch and how
  /// the last step ended stay.
  void use(Memory activations);
  /// Changes when steps get other memory, or room for more: what was captured as a graph is of another then.
  [[nodiscard]] std::uint64_t memory_version() const noexcept { return memory_version_; }

  /// For `step` only. Throws usage_error while another step of this engine is open, in a phase that does not train, and
  /// where a forward-only pass has overflowed and was not repeated.
  void begin_step(where at);
  /// For `forward_only` only: a pass counts as no step, and changes nothing that the last step has left.
  void begin_pass(where at) { begin(at); }
  void note_pass(const pass_findings& found) noexcept;
  /// The findings of forward-only passes since the last call.
  [[nodiscard]] pass_findings take_pass_findings() noexcept { return std::exchange(passes_, {}); }

  /// For `step` only. What is queued and has not begun is skipped; returns when what has begun is over.
  void cancel_queued() noexcept;
  /// For `step` only: returns when the copies of a step that is committed are over. What has failed in them, the next
  /// step throws.
  void finish_copies(where at);
  /// For `step` and `forward_only` only. Ends every lease and every obligation of the step. What it has queued is over
  /// where it was committed; else it is skipped, because it may wait for peers that wait for this rank.
  void end_step() noexcept;

  /// Adds to the loss of the step or pass that runs, in the order of the compute stream; the commit of a step sums it
  /// over all ranks. `count` is that of a pass's targets or samples. A kernel has `found()` for it.
  void add_loss(double more, std::uint64_t count = 0) { compute().run(add_loss_to{{found(), {}}, more, count}); }
  /// Where kernels write what the step or pass that runs finds: a pointer for them, in the memory of the device.
  [[nodiscard]] kernel::findings_record* found() const noexcept { return findings_.record(); }
  /// For `step` and `forward_only` only: copies it for the host, once, and waits for that copy's event. Throws the
  /// first failure of what was queued.
  [[nodiscard]] const kernel::findings_record& read_findings(where at);
  /// For `step` and `forward_only` only: the findings, copied for the host; null where something has failed, which the
  /// next step or pass throws.
  [[nodiscard]] const kernel::findings_record* try_findings(where at) noexcept;
  /// Throws the usage_error of indices or rows that kernels have found to be none.
  void expect_right(std::uint64_t wrong, const kernel::finding& first) const;
  /// Bytes of the findings, in the memory of the device, beside the activations.
  static constexpr std::size_t findings_bytes = belay::findings<Memory>::bytes;
  /// Whether nothing runs, and activations are addresses without pages.
  [[nodiscard]] bool rehearsing() const noexcept { return rehearses_; }

  /// Steps have room for so many rows a dispatch from now on; 0: for what their participants were made for.
  void make_room(std::uint64_t rows) noexcept { room_ = rows, ++memory_version_; }
  [[nodiscard]] std::uint64_t room() const noexcept { return room_; }

  /// How the last step ended, for the loop that runs the next.
  [[nodiscard]] end_of_step last_end() const noexcept { return last_end_; }
  [[nodiscard]] std::uint64_t needed_rows() const noexcept { return needed_rows_; }
  /// Throws the text of a refusal that nobody has read, as `error` at the step's site.
  void expect_refusal_read() const;
  /// Where the last step was made.
  [[nodiscard]] const where& step_site() const noexcept { return begun_at_; }
  /// For `step` only.
  void note_end(end_of_step how) noexcept { last_end_ = how; }
  void note_rows(std::uint64_t needed) noexcept { needed_rows_ = needed, ++memory_version_; }
  [[nodiscard]] bool& note_refusal(std::string why, where at);

 private:
  void begin(where at);
  void change_flow();

  tier_meter* meter_;
  std::size_t max_leases_;
  arena<Memory> arena_;
  std::shared_ptr<belay::ledger> ledger_;
  owed_bytes owed_;
  belay::findings<Memory> findings_;  // before the streams, which write it
  Kit kit_;
  bool rehearses_ = runs_nothing(kit_.stream());
  stream_settings streams_;  // of `copies_`, with `rank_`
  int rank_ = 0;
  std::unique_ptr<copies_type> copies_;
  using access_type = typename access_of<Memory, stream_type>::type;
  std::unique_ptr<access_type> access_;
  [[no_unique_address]] watch_type watch_;
  flow_pair* pair_ = nullptr;  // that is under way
  bool waited_ = false;  // since the last step or pass began: what is queued since then is work of the next one
  std::uint64_t step_number_ = 0;
  std::uint64_t epoch_ = 0;
  std::uint64_t needed_rows_ = 0;
  std::uint64_t memory_version_ = 1;
  std::uint64_t room_ = 0;
  pass_findings passes_;
  std::string refusal_;
  where refused_at_, begun_at_;
  phase phase_ = phase::train;
  end_of_step last_end_ = end_of_step::cut_off;
  bool unread_refusal_ = false;
  bool in_step_ = false;
  freed_memory left_ = freed_by_default;
  std::shared_ptr<lease_owners> owners_ = std::make_shared<lease_owners>();
  std::vector<arena<Memory>*> of_steps_;  // beside `arena_`
  // Of slots of heaps, which may end after the step that has used them.
  struct lease_holder {
    void* owner;
    held_lease (*hold)(void* owner, const void* address);

    template <class Leases>
    [[nodiscard]] static lease_holder of(Leases& one) noexcept {
      return {&one,
              [](void* from, const void* address) { return held_lease::of(*static_cast<Leases*>(from), address); }};
    }
  };
  std::vector<lease_holder> heaps_;
  weight_note_pool notes_;
};

using host_engine = engine<host_pages, host_kit<>>;

}  // namespace belay::inline BELAY_ABI

#include "belay/step/engine.ipp"  // IWYU pragma: export

#if defined(BELAY_SEPARATE_COMPILATION)
extern template class belay::engine<belay::host_pages, belay::host_kit<>>;
#endif
