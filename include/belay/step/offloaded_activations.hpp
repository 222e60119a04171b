// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the activations of offloaded layers are between forward and backward: in an arena of a lower tier, of exactly
// the bytes that the rehearsal has found. What a call keeps is copied there on the stream of copies, and its memory on
// the device is free for the next call but one. It comes back before its backward: while the backward before it runs,
// where the step follows the order of its rehearsal.
//
//   belay::offloaded_activations activations{run, belay::tier::host};
//   belay::offloads block{net.layers[0], activations};
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/streamed_file.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/layer.hpp"
#include "belay/step/phase.hpp"
#include "belay/step/relocation.hpp"  // IWYU pragma: export

namespace belay::inline BELAY_ABI {

/// How calls came back since it was asked.
struct return_counts {
  std::uint64_t stayed = 0;      // were on the device still: their backward came next
  std::uint64_t prefetched = 0;  // the copy had been started before the backward asked
  std::uint64_t in_order = 0;    // as the plan says, but not started before
  std::uint64_t missed = 0;      // not as the plan says
};

template <class Engine>
class offloaded_activations {
 public:
  using engine_type = Engine;
  using arena_type = arena<typename Engine::memory_type>;
  /// No call.
  static constexpr std::uint32_t nothing = call_order::nothing;

  /// Layers whose activations live in `lower` from their forward to their backward; in tier device nothing leaves.
  /// `run` outlives it, and gives it memory that is planned and grows when a step is replayed. In tier file they are in
  /// a file in `files.folder`, and pass through a ring in tier host. Throws tier_file_error where the file cannot be
  /// made, usage_error where it has no folder.
  template <class Run>
  offloaded_activations(Run& run, tier lower, const file_memory& files = {}, where at = where::current());
  offloaded_activations(const offloaded_activations&) = delete;  // layers point to it
  offloaded_activations& operator=(const offloaded_activations&) = delete;

  /// For `offloads`, at the end of a forward: copies away what the call has kept and remembered, `input`, and `output`
  /// where its backward reads it. The output's own memory stays until `let_go`. Returns the call's number. Throws
  /// budget_error, and usage_error where the output is in the memory of the input.
  [[nodiscard]] std::uint32_t offload(frame<Engine>& call, std::span<const std::byte> output, output_use use,
                                      std::span<const std::byte> input);

  /// For `offloads`: the memory of a call's output is free when what has left since has been copied.
  void let_go(std::uint32_t number, lease_chain& output) {
    if (number == nothing) return;
    const one_call& one = calls_[number];
    if (one.is != offload_state::stayed || one.use == output_use::unread) let_go(output);
  }
  /// Memory that is no call's, and that calls have had as their input, is free when what has left since has been
  /// copied. In tier device it stays.
  void let_go(lease_chain& output);

  /// For `offloads`, before a backward: what the call has kept is on the device in later work of the compute stream,
  /// where the relocation says. The call that is next in the plan is started on its way back.
  [[nodiscard]] relocation restore(std::uint32_t number, where at);
  /// The call's backward has been queued.
  void end(std::uint32_t number) noexcept {
    if (number == nothing) return;
    engine_->activations().release(calls_[number].on_device);
    calls_[number].is = offload_state::over;
  }
  /// The call has no backward.
  void drop(std::uint32_t number, where at);

  /// The lower tier.
  [[nodiscard]] tier where_they_are() const noexcept { return tier_; }
  /// The most bytes that were in the lower tier at a time.
  [[nodiscard]] std::size_t peak_bytes() const noexcept {
    return lower_ == nullptr ? 0 : lower_->offsets().peak_bytes();
  }
  [[nodiscard]] const return_counts& counts() const noexcept { return counts_; }
  [[nodiscard]] return_counts take_counts() noexcept { return std::exchange(counts_, {}); }

 private:
  static constexpr std::size_t not_copied = ~std::size_t{0};
  // `leaving`: being copied, and still on the device. `returning`: being copied back. `back`: at another place.
  enum class offload_state : std::uint8_t { stayed, leaving, away, returning, back, over };
  struct one_call {
    std::vector<relocation::moved_range> ranges;  // on the device, as the forward left them
    std::vector<std::size_t> places;              // of each in the block
    std::byte* block = nullptr;                   // in the lower tier
    std::byte* returned = nullptr;                // on the device again
    lease_chain in_lower, on_device, let_go;
    std::span<const std::byte> input;
    stream_event copied, back;
    offload_state is = offload_state::over;
    output_use use = output_use::read;

    [[nodiscard]] std::size_t bytes() const noexcept {
      for (std::size_t i = ranges.size(); i-- > 0;)
        if (places[i] != not_copied) return places[i] + leased_size(ranges[i].bytes);
      return 0;
    }
  };

  [[nodiscard]] static bool begins_in(std::span<const std::byte> what, const std::byte* first,
                                      std::size_t bytes) noexcept {
    return !what.empty() && what.data() >= first && what.data() < first + bytes;
  }
  static void add(one_call& one, std::span<const std::byte> what);
  // All leases of `chain` but the one that holds `output`, which stays in it.
  void take_all_but(std::span<const std::byte> output, lease_chain& chain, one_call& one);
  [[nodiscard]] bool holds(const lease_chain& chain, std::span<const std::byte> what) const;
  void expect_own(const frame<Engine>& call, std::span<const std::byte> output, std::span<const std::byte> input) const;

  void begin();

  // What streams have queued points to the file, so a run keeps it.
  using file_type = std::optional<streamed_file<>>;
  template <class Run>
  void lease_in_file(Run& run, where at);
  // Of the size that was planned, which is another one when a step is replayed with more room.
  void make_file(where at);
  [[nodiscard]] std::size_t in_lower_bytes(const one_call& one) const noexcept {
    return tier_ == tier::file ? sizes_.rounded(one.bytes()) : one.bytes();
  }
  [[nodiscard]] std::uint64_t place_in_file(const one_call& one) const noexcept {
    return static_cast<std::uint64_t>(one.block - lower_->memory().data());
  }
  // A block is whole blocks of the medium: one piece after the other is put together in a slot, and written.
  void write(const one_call& one, where at);
  void read(const one_call& one, where at);

  // The memory of what leaves is free in the order of the compute stream.
  void retire(where at);
  // What leaves is wanted next: it stays where it is.
  void cancel_offload(where at);
  void start(one_call& one, where at);
  void start_next(where at);
  // What was started gives way to a call that the plan does not have here.
  void cancel_restore(where at);
  void count(const one_call& one, bool in_order) noexcept {
    ++(one.is == offload_state::stayed      ? counts_.stayed
       : one.is == offload_state::returning ? counts_.prefetched
       : in_order                           ? counts_.in_order
                                            : counts_.missed);
  }

  Engine* engine_;
  tier tier_;
  file_memory files_;
  streamed_layout sizes_;
  std::span<std::byte> ring_;
  std::shared_ptr<file_type> file_;
  std::size_t file_bytes_ = 0;
  arena_type* lower_ = nullptr;
  rehearsed_order* order_ = nullptr;
  std::vector<one_call> calls_;  // by number, of the step that runs
  std::uint64_t epoch_ = ~std::uint64_t{0};
  std::uint32_t next_ = 0, leaving_ = nothing, started_ = nothing;
  return_counts counts_;
};

template <class Run>
offloaded_activations(Run&, tier) -> offloaded_activations<typename Run::engine_type>;
template <class Run>
offloaded_activations(Run&, tier, file_memory) -> offloaded_activations<typename Run::engine_type>;

// Questions of other rooms to a layer, where it answers them.
/// A layer whose activations leave the device between its forward and its backward. It wraps a layer, and is one; the
/// layer does not change. What leaves is what the forward has kept, and a copy of the input: so the handle of the layer
/// before need not keep its output on the device, and says so with `let_go`.
template <class Layer>
struct learning_of_wrapped {};
/// Of a layer around another one.
template <class Layer>
  requires requires { typename Layer::learning_type; }
struct learning_of_wrapped<Layer> {
  using learning_type = typename Layer::learning_type;
};

/// `Activations` are an `offloaded_activations`.
template <class Layer, class Activations>
class offloads : public learning_of_wrapped<Layer> {
 public:
  using offloads_activations = void;  // for `recompute`, which is inside

  /// Both outlive it.
  offloads(Layer& layer, Activations& activations) noexcept : layer_(&layer), activations_(&activations) {}

  /// Name, number and parameters are those of the layer within, which is `layer()`.
  [[nodiscard]] const char* name() const noexcept { return layer_name(*layer_); }
  [[nodiscard]] std::size_t index() const noexcept { return layer_index(*layer_); }
  [[nodiscard]] Layer& layer() const noexcept { return *layer_; }
  template <class Visitor>
    requires requires(Layer& layer, Visitor& visit) { layer.for_each_parameter(visit); }
  void for_each_parameter(Visitor&& visit) {
    layer_->for_each_parameter(visit);
  }

  /// The residue of an offloaded layer, which is on the device until it has left.
  template <class Output, class Residue>
  struct offloaded_residue {
    /// The output, and all that the layer within kept.
    Output out;
    Residue whole;
    std::uint32_t call;  // its number in the step
  };

  /// A forward that owes nothing keeps nothing, and nothing leaves.
  template <class Engine, class Input>
    requires requires(Layer& layer, frame<Engine>& call, const Input& input) { layer.forward(call, input).out; }
  [[nodiscard]] auto forward(frame<Engine>& call, const Input& input) {
    using residue_type = decltype(layer_->forward(call, input));
    using output_type = std::remove_cvref_t<decltype(std::declval<residue_type&>().out)>;
    constexpr bool moves = relocatable<residue_type>;
    static_assert(moves,
                  "belay: what this layer's forward returns holds something that is neither a view nor a number, and "
                  "cannot be told where its memory is when that has come back: give the class of it "
                  "`void relocate(const belay::relocation& to)`, which calls to(member) for each view in it");
    residue_type whole = layer_->forward(call, input);
    if (!call.forward_only()) expect_kept(call, whole, input, residue_use::dropped);
    const output_type out = whole.out;
    std::uint32_t number = Activations::nothing;
    if constexpr (moves) {
      // An input without gradient is no layer's output, and stays where it is.
      std::span<const std::byte> from;
      if constexpr (differentiable<Input>) from = std::as_bytes(input.flat());
      if (!call.forward_only() && !call.replaying())
        number = activations_->offload(call, std::as_bytes(out.flat()), output_use_of<Layer>, from);
    }
    return offloaded_residue<output_type, residue_type>{out, std::move(whole), number};
  }

  /// That of the layer within, after what it kept has come back.
  template <class Engine, class Output, class Residue, class Dout, class... Dx>
    requires requires(Layer& layer, frame<Engine>& call, Residue&& residue, const Dout& dout, const Dx&... dx) {
      layer.backward(call, std::move(residue), dout, dx...);
    }
  void backward(frame<Engine>& call, offloaded_residue<Output, Residue>&& residue, const Dout& dout, const Dx&... dx) {
    restore(call, residue);
    layer_->backward(call, std::move(residue.whole), dout, dx...);
    activations_->end(residue.call);
  }

  /// Ends the layer's obligations without a backward.
  template <class Engine, class Output, class Residue>
  void discard(frame<Engine>& call, offloaded_residue<Output, Residue>&& residue, const char* why) {
    if constexpr (requires { layer_->discard(call, std::move(residue.whole), why); }) {
      restore(call, residue);
      layer_->discard(call, std::move(residue.whole), why);
      activations_->end(residue.call);
    } else {
      activations_->drop(residue.call, call.call().at);
    }
  }

  /// For a handle: whoever read its output has it.
  template <class Output, class Residue>
  void let_go(const offloaded_residue<Output, Residue>& residue, invocation_memory& memory) {
    activations_->let_go(residue.call, memory.kept);
  }

 private:
  template <class Engine, class Output, class Residue>
  void restore(frame<Engine>& call, offloaded_residue<Output, Residue>& residue) {
    if constexpr (relocatable<Residue>) {
      const relocation to = activations_->restore(residue.call, call.call().at);
      to(residue.whole);
      invocation_memory& memory = call.memory();
      for (std::size_t i = 0; i < memory.remembered_count; ++i) to(memory.remembered_at[i]);
    }
  }

  Layer* layer_;
  Activations* activations_;
};

template <class Engine>
std::uint32_t offloaded_activations<Engine>::offload(frame<Engine>& call, std::span<const std::byte> output,
                                                     output_use use, std::span<const std::byte> input) {
  if (lower_ == nullptr) return nothing;
  const where at = call.call().at;
  expect_own(call, output, input);
  begin();
  retire(at);
  const std::uint32_t number = next_++;
  if (number == calls_.size()) calls_.emplace_back();
  one_call& one = calls_[number];
  one.ranges.clear();
  one.places.clear();
  one.is = offload_state::stayed;
  one.use = use;
  one.input = input;
  invocation_memory& memory = call.memory();
  take_all_but(output, memory.kept, one);
  if (order_->expected.next() == number) {
    one.ranges.clear();
    one.places.clear();
    return number;
  }
  take_all_but({}, memory.remembered, one);
  if (use == output_use::read) add(one, output);
  add(one, input);
  if (one.bytes() == 0) return number;
  one.block = lower_->lease_bytes(in_lower_bytes(one), one.in_lower, at);
  auto& copies = engine_->copies();
  copies.wait(engine_->compute().record(), at);
  if (tier_ == tier::file)
    write(one, at);
  else
    for (std::size_t i = 0; i < one.ranges.size(); ++i)
      copies.copy(one.block + one.places[i], one.ranges[i].first, one.ranges[i].bytes);
  one.copied = copies.record();
  if (use == output_use::unread && !output.empty()) {
    one.ranges.push_back({output.data(), output.size(), nullptr});
    one.places.push_back(not_copied);
  }
  one.is = offload_state::leaving;
  leaving_ = number;
  return number;
}

template <class Engine>
void offloaded_activations<Engine>::let_go(lease_chain& output) {
  if (lower_ == nullptr) return;
  auto& device = engine_->activations();
  const std::uint32_t next = order_->expected.next();
  // A call that stays reads its input where that is.
  if (next < next_ && calls_[next].is == offload_state::stayed && holds(output, calls_[next].input))
    return device.append(output, calls_[next].on_device);
  if (leaving_ == nothing) return device.release(output);
  device.append(output, calls_[leaving_].let_go);
}

template <class Engine>
relocation offloaded_activations<Engine>::restore(std::uint32_t number, where at) {
  if (number == nothing) return relocation({});
  one_call& one = calls_[number];
  const bool in_order = order_->expected.advance(number);
  if (engine_->rehearsing()) order_->found.note(number);
  if (leaving_ != nothing) leaving_ == number || leaving_ == order_->expected.next() ? cancel_offload(at) : retire(at);
  if (!in_order && started_ != nothing && started_ != number) cancel_restore(at);
  count(one, in_order);
  if (one.is == offload_state::away) start(one, at);
  if (one.is == offload_state::returning) {
    engine_->copies().let_wait(engine_->compute(), one.back, at);
    lower_->release(one.in_lower);
    for (std::size_t i = 0; i < one.ranges.size(); ++i)
      one.ranges[i].now = one.places[i] == not_copied ? nullptr : one.returned + one.places[i];
    one.is = offload_state::back;
  }
  if (started_ == number) started_ = nothing;
  start_next(at);
  return relocation(one.is == offload_state::back ? std::span<const relocation::moved_range>(one.ranges)
                                                  : std::span<const relocation::moved_range>());
}

template <class Engine>
void offloaded_activations<Engine>::drop(std::uint32_t number, where at) {
  if (number == nothing) return;
  one_call& one = calls_[number];
  if (leaving_ == number) cancel_offload(at);
  if (started_ == number) cancel_restore(at);
  lower_->release(one.in_lower);
  end(number);
}

template <class Engine>
void offloaded_activations<Engine>::add(one_call& one, std::span<const std::byte> what) {
  if (what.empty()) return;
  one.places.push_back(one.bytes());
  one.ranges.push_back({what.data(), what.size(), nullptr});
}

template <class Engine>
void offloaded_activations<Engine>::take_all_but(std::span<const std::byte> output, lease_chain& chain, one_call& one) {
  auto& device = engine_->activations();
  lease_chain rest = std::exchange(chain, {});
  const std::byte* const first = device.memory().data();
  const std::byte* stays = nullptr;
  device.offsets().each(rest, [&](std::size_t offset, std::size_t bytes) {
    if (begins_in(output, first + offset, bytes))
      stays = first + offset;
    else
      add(one, {first + offset, bytes});
  });
  if (stays != nullptr) static_cast<void>(device.transfer(stays, rest, chain));
  device.append(rest, one.on_device);
}

template <class Engine>
bool offloaded_activations<Engine>::holds(const lease_chain& chain, std::span<const std::byte> what) const {
  const std::byte* const first = engine_->activations().memory().data();
  bool found = false;
  engine_->activations().offsets().each(
      chain, [&](std::size_t offset, std::size_t bytes) { found = found || begins_in(what, first + offset, bytes); });
  return found;
}

template <class Engine>
void offloaded_activations<Engine>::expect_own(const frame<Engine>& call, std::span<const std::byte> output,
                                               std::span<const std::byte> input) const {
  const auto refuse = [&](const char* why) {
    throw usage_error("layer '" + printable(call.layer()) + "' is offloaded, " + why, call.call().at);
  };
  if (&call.engine() != engine_) refuse("and runs in a step of another run");
  if (begins_in(output, input.data(), input.size()))
    refuse("and its output is in the memory of its input, which is another layer's: copy it");
}

template <class Engine>
void offloaded_activations<Engine>::begin() {
  if (engine_->epoch() == epoch_) return;
  epoch_ = engine_->epoch();
  if (lower_->offsets().live_bytes() > 0) lower_->reclaim();  // of handles that were lost
  if (tier_ == tier::file && lower_->memory().size_bytes() != file_bytes_) make_file(engine_->step_site());
  for (one_call& each : calls_) each.in_lower = each.on_device = each.let_go = {};
  next_ = 0;
  leaving_ = started_ = nothing;
  order_->expected.begin();
  if (engine_->rehearsing()) order_->found = {};
}

template <class Engine>
void offloaded_activations<Engine>::make_file(where at) {
  file_bytes_ = lower_->memory().size_bytes();
  if (!engine_->rehearsing()) {
    file_->reset();
    if (file_bytes_ == 0) return;
    file_->emplace(files_, file_bytes_, sizes_, ring_, at);
    (*file_)->set_host_view(engine_->access(at));
  }
}

template <class Engine>
void offloaded_activations<Engine>::write(const one_call& one, where at) {
  if (!engine_->rehearsing()) {
    auto& copies = engine_->copies();
    auto* const file = &**file_;
    const std::uint64_t first = place_in_file(one);
    copies.run([file, first, bytes = in_lower_bytes(one), at] { file->begin_write(first, bytes, at); });
    for (std::size_t i = 0; i < one.ranges.size(); ++i)
      copies.run([file, to = first + one.places[i], from = one.ranges[i].first, bytes = one.ranges[i].bytes] {
        file->put(to, from, bytes);
      });
    copies.run([file] { file->end_write(); });
  }
}

template <class Engine>
void offloaded_activations<Engine>::read(const one_call& one, where at) {
  if (!engine_->rehearsing()) {
    auto& copies = engine_->copies();
    auto* const file = &**file_;
    const std::uint64_t first = place_in_file(one);
    copies.run([file, first, bytes = one.bytes(), at] { file->begin_read(first, bytes, at); });
    for (std::size_t i = 0; i < one.ranges.size(); ++i)
      if (one.places[i] != not_copied)
        copies.run([file, from = first + one.places[i], to = one.returned + one.places[i],
                    bytes = one.ranges[i].bytes] { file->get(to, from, bytes); });
  }
}

template <class Engine>
void offloaded_activations<Engine>::retire(where at) {
  if (leaving_ == nothing) return;
  one_call& one = calls_[std::exchange(leaving_, nothing)];
  engine_->copies().let_wait(engine_->compute(), one.copied, at);
  engine_->activations().release(one.on_device);
  engine_->activations().release(one.let_go);
  one.is = offload_state::away;
}

template <class Engine>
void offloaded_activations<Engine>::cancel_offload(where at) {
  one_call& one = calls_[std::exchange(leaving_, nothing)];
  engine_->copies().let_wait(engine_->compute(), one.copied, at);
  engine_->activations().append(one.let_go, one.on_device);  // its input is among them
  lower_->release(one.in_lower);
  one.is = offload_state::stayed;
}

template <class Engine>
void offloaded_activations<Engine>::start(one_call& one, where at) {
  one.returned = engine_->activations().lease_bytes(one.bytes(), one.on_device, at);
  auto& copies = engine_->copies();
  copies.wait(engine_->compute().record(), at);  // what the memory held before is used up
  if (tier_ == tier::file)
    read(one, at);
  else
    for (std::size_t i = 0; i < one.ranges.size(); ++i)
      if (one.places[i] != not_copied)
        copies.copy(one.returned + one.places[i], one.block + one.places[i], one.ranges[i].bytes);
  one.back = copies.record();
  one.is = offload_state::returning;
}

template <class Engine>
void offloaded_activations<Engine>::start_next(where at) {
  const std::uint32_t next = order_->expected.next();
  if (next == nothing || next >= next_ || started_ != nothing || calls_[next].is != offload_state::away) return;
  start(calls_[next], at);
  started_ = next;
}

template <class Engine>
void offloaded_activations<Engine>::cancel_restore(where at) {
  one_call& one = calls_[std::exchange(started_, nothing)];
  engine_->copies().let_wait(engine_->compute(), one.back, at);
  engine_->activations().release(one.on_device);
  one.is = offload_state::away;
}

template <class Engine>
template <class Run>
offloaded_activations<Engine>::offloaded_activations(Run& run, tier lower, const file_memory& files, where at)
    : engine_(&run.engine()), tier_(lower), files_(files) {
  if (lower == tier::device) return;
  if (lower == tier::file)
    lease_in_file(run, at);
  else
    lower_ = &run.step_memory("activations", lower);
  order_ = &run.rehearsed_returns();
  static_cast<void>(engine_->copies());  // made before the first step
}

template <class Engine>
template <class Run>
void offloaded_activations<Engine>::lease_in_file(Run& run, where at) {
  if (files_.folder.empty())
    throw usage_error(
        "activations in tier file have no folder: belay::offloaded_activations{run, "
        "belay::tier::file, {.folder = ...}}",
        at);
  const file_medium medium = medium_of(files_.folder, at);
  sizes_ = streamed_layout(medium.alignment, files_.piece);
  lower_ = &run.step_memory("activations", tier::file, medium.in_memory ? file_bytes::in_memory : file_bytes::on_disk);
  ring_ = run.template lease<std::byte>(tier::host, sizes_.whole_ring_bytes(), "activation ring", at);
  file_ = std::make_shared<file_type>();
  run.keep(file_);
  make_file(at);
}

}  // namespace belay::inline BELAY_ABI
