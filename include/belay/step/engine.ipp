// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An engine out of its class: a program links that of the host, and compiles those of its own kits.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "belay/step/engine.hpp"

namespace belay::inline BELAY_ABI {

template <memory_region Memory, compute_kit<float> Kit>
engine<Memory, Kit>::engine(Memory activations, tier_meter& meter, Kit kit, freed_memory left, std::size_t max_leases,
                            std::size_t max_obligations)
  requires std::move_constructible<Kit>
    : meter_(&meter),
      max_leases_(max_leases),
      arena_(tier::device, std::move(activations), max_leases, meter),
      ledger_(std::make_shared<belay::ledger>(max_obligations)),
      owed_(meter),
      findings_(arena_.memory()),
      kit_(std::move(kit)),
      left_(left) {
  adopt(arena_);
}

template <memory_region Memory, compute_kit<float> Kit>
engine<Memory, Kit>::engine(Memory activations, tier_meter& meter, const stream_settings& streams, int rank,
                            std::size_t max_leases, std::size_t max_obligations)
  requires std::constructible_from<Kit, const stream_settings&, int>
    : meter_(&meter),
      max_leases_(max_leases),
      arena_(tier::device, std::move(activations), max_leases, meter),
      ledger_(std::make_shared<belay::ledger>(max_obligations)),
      owed_(meter),
      findings_(arena_.memory()),
      kit_(streams, rank),
      streams_(streams),
      rank_(rank),
      left_(streams.policy == stream_policy::adversarial ? freed_memory::poisoned : freed_by_default) {
  adopt(arena_);
}

template <memory_region Memory, compute_kit<float> Kit>
engine<Memory, Kit>::engine(Memory activations, tier_meter& meter, std::size_t max_leases, std::size_t max_obligations)
  requires std::default_initializable<Kit>
    : meter_(&meter),
      max_leases_(max_leases),
      arena_(tier::device, std::move(activations), max_leases, meter),
      ledger_(std::make_shared<belay::ledger>(max_obligations)),
      owed_(meter),
      findings_(arena_.memory()) {
  adopt(arena_);
}

template <memory_region Memory, compute_kit<float> Kit>
auto engine<Memory, Kit>::copies() -> copies_type& {
  if (copies_ != nullptr) return *copies_;
  // (nvcc does not see what compute() has.)
  if constexpr (requires(stream_type& compute_stream) { compute_stream.another_stream(stream_kind::copy); })
    copies_ = std::make_unique<copies_type>(compute().another_stream(stream_kind::copy));
  else if constexpr (std::constructible_from<copies_type, const stream_settings&, int>)
    copies_ = std::make_unique<copies_type>(streams_, rank_);
  else
    copies_ = std::make_unique<copies_type>();
  if constexpr (traced_stream<stream_type>) copies_->stream().trace_into(spans());
  if constexpr (requires(stream_type& captured) { captured.join_captures(); }) copies_->stream().join_captures();
  return *copies_;
}

template <memory_region Memory, compute_kit<float> Kit>
auto engine<Memory, Kit>::access([[maybe_unused]] where at) -> const host_access* {
  if constexpr (device_region<Memory>) {
    if (access_ == nullptr)
      access_ = std::make_unique<access_type>(compute().another_stream(stream_kind::copy),
                                              arena_.memory().allocate_host(host_access::piece_bytes, at));
    return access_.get();
  } else {
    return nullptr;
  }
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::synchronize(where at) {
  belay::synchronize(compute(), at);
  if (has_copies()) copies_->synchronize(at);
  waited_ = true;
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::trace_into(span_log* log, const tier_meters* meters)
  requires traced_stream<stream_type>
{
  watch_.trace_into(log, compute(), meters);
  compute().trace_into(log);
  if (has_copies()) copies_->stream().trace_into(log);
}

/// The calls of a flow while the other one runs.
template <class Watch>
class interrupted_calls {
 public:
  explicit interrupted_calls(Watch& watch) noexcept : watch_(&watch), calls_(watch.set_aside()) {}
  interrupted_calls(const interrupted_calls&) = delete;
  interrupted_calls& operator=(const interrupted_calls&) = delete;
  ~interrupted_calls() { watch_->take_up(calls_); }

 private:
  Watch* watch_;
  [[no_unique_address]] typename Watch::calls_aside calls_;
};

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::run_beside(flow_pair& pair, function_ref<void()> first, function_ref<void()> second,
                                     function_ref<void(pair_turn)> changes, where at) {
  if (pair_ != nullptr)
    throw usage_error("a pair of micro-batches is under way in this engine, and has none within", at);
  const interrupted_calls<watch_type> outer(watch_);
  struct under_way {
    flow_pair*& pair;
    ~under_way() { pair = nullptr; }
  } const until_over{pair_ = &pair};
  pair.run(first, second, changes, at);
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::change_flow() {
  const interrupted_calls<watch_type> own(watch_);
  pair_->hand_over();
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::enter(phase next, where at) {
  expect_between_steps(at);
  phase_ = next;
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::expect_between_steps(where at) const {
  if (in_step_) throw usage_error("a step of this engine is still open: commit it, or let it end, before the next", at);
}

template <memory_region Memory, compute_kit<float> Kit>
std::string engine<Memory, Kit>::given_back(std::int64_t index) const {
  return owners_->text(owner_in_integer(index));
}

template <memory_region Memory, compute_kit<float> Kit>
std::string engine<Memory, Kit>::given_back(double found) const {
  return owners_->text(owner_in(found));
}

template <memory_region Memory, compute_kit<float> Kit>
bool engine<Memory, Kit>::is_of_steps(const void* address) const noexcept {
  return arena_.has(address) ||
         std::any_of(of_steps_.begin(), of_steps_.end(), [&](const auto* one) { return one->has(address); });
}

template <memory_region Memory, compute_kit<float> Kit>
held_lease engine<Memory, Kit>::hold(const void* address) {
  if (arena_.has(address)) return held_lease::of(arena_, address);
  for (arena<Memory>* const one : of_steps_)
    if (one->has(address)) return held_lease::of(*one, address);
  for (const lease_holder& one : heaps_)
    if (const held_lease found = one.hold(one.owner, address); found.drop != nullptr) return found;
  return {};
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::use(Memory activations) {
  synchronize();
  arena_.open_addresses();
  arena_ = arena<Memory>(tier::device, std::move(activations), max_leases_, *meter_);
  adopt(arena_);
  ++epoch_;
  ++memory_version_;
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::begin_step(where at) {
  if (phase_ != phase::train)
    throw usage_error("a step trains, and this rank is in its " + std::string(name(phase_)) +
                          " phase: go back with phases.to_train(std::move(...))",
                      at);
  if (passes_.needed_rows > 0)
    throw usage_error(
        "a forward-only pass overflowed, and was not repeated with more room: run it in "
        "belay::evaluate(run, mesh, body)",
        at);
  expect_right(std::exchange(passes_.wrong, 0), passes_.first_wrong);
  begin(at);
  last_end_ = end_of_step::cut_off;
  unread_refusal_ = false;
  begun_at_ = at;
  ++step_number_;
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::note_pass(const pass_findings& found) noexcept {
  passes_.open_obligations += found.open_obligations;
  if (found.needed_rows > passes_.needed_rows) passes_.needed_rows = found.needed_rows;
  passes_.count += found.count;
  passes_.loss += found.loss;
  if (passes_.wrong == 0) passes_.first_wrong = found.first_wrong;
  passes_.wrong += found.wrong;
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::cancel_queued() noexcept {
  if constexpr (requires { compute().cancel(); }) compute().cancel();
  if (has_copies()) copies_->cancel();
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::finish_copies(where at) {
  if (has_copies()) copies_->wait_until_idle(at);
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::end_step() noexcept {
  cancel_queued();
  if (arena_.offsets().live_bytes() > 0) arena_.reclaim();
  if (ledger_->open_count() + ledger_->misuse_count() > 0) ledger_->clear();
  owed_.clear();
  notes_.clear();
  heaps_.clear();
  owners_->forget_failure();  // of a step that is cut off
  watch_.end();
  in_step_ = false;
  ++epoch_;
}

template <memory_region Memory, compute_kit<float> Kit>
auto engine<Memory, Kit>::read_findings(where at) -> const kernel::findings_record& {
  const stream_event copied = findings_.copy(compute());
  if (rehearsing()) return findings_.none();
  owners_->expect_overwritten();
  const span_timer waits(add_wait(spans(), span_lane::host, copied, at));
  try {
    return findings_.read(copied, epoch_, at);
  } catch (...) {
    belay::synchronize(compute(), at);  // a failure is told once
    throw;
  }
}

template <memory_region Memory, compute_kit<float> Kit>
auto engine<Memory, Kit>::try_findings(where at) noexcept -> const kernel::findings_record* {
  try {
    const stream_event copied = findings_.copy(compute());
    return rehearsing() ? &findings_.none() : &findings_.read(copied, epoch_, at);
  } catch (...) {
    return nullptr;
  }
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::expect_right(std::uint64_t wrong, const kernel::finding& first) const {
  if (wrong == 0) return;
  const std::string why = given_back(first.value);
  throw usage_error(text(first) + (wrong == 1 ? "" : ", and " + std::to_string(wrong - 1) + " more") +
                        (why.empty() ? "" : "; " + why),
                    site_of(first));
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::expect_refusal_read() const {
  if (unread_refusal_) throw error(refusal_, refused_at_);
}

template <memory_region Memory, compute_kit<float> Kit>
auto engine<Memory, Kit>::note_refusal(std::string why, where at) -> bool& {
  refusal_ = std::move(why);
  refused_at_ = at;
  return unread_refusal_;
}

template <memory_region Memory, compute_kit<float> Kit>
void engine<Memory, Kit>::begin(where at) {
  expect_between_steps(at);
  // Throws what has failed since the last step. A stream that skips what it has not begun, when a step is cut off, has
  // nothing of before it then, such as an update.
  constexpr bool skips = requires(stream_type& stream) { stream.cancel(); };
  if (skips || !waited_) synchronize(at);
  waited_ = false;
  watch_.begin(arena_.memory().data(), arena_.memory().size_bytes(), at);
  in_step_ = true;
  ++epoch_;
  findings_.begin(compute(), epoch_);
}

template <memory_region Memory, compute_kit<float> Kit>
engine<Memory, Kit>::~engine() = default;

}  // namespace belay::inline BELAY_ABI
