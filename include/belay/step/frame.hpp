// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A frame is what a layer sees of the step during one call: memory with three lifetimes, a kit that computes, and names
// for messages. It knows no ranks and does not outlive the call.
//
//   auto y = belay::keep<float>(frame, {x.extent(0), weight.extent(0)});     // until this invocation's backward
//   auto scores = belay::scratch<float>(frame, {rows, keys});                // until the call returns
//   frame.product(y, x, belay::transposed(frame.read(weight)));              // not done in a rehearsal
//   frame.each(y.size(), belay::kernel::scale<float>{0.5F, y.data()});
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/findings.hpp"
#include "belay/device/lease_owners.hpp"
#include "belay/device/poison.hpp"
#include "belay/step/arithmetic.hpp"
#include "belay/step/contribution.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/weight_notes.hpp"

namespace belay::inline BELAY_ABI {

/// Zeroes memory that nothing has written: a kernel.
template <class T>
struct write_zero {
  /// The memory, and its element `i`.
  T* out;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept { out[i] = T(0); }
};

/// The gradient of a parameter, to be added to: who asks for its memory gets zeros where the step has not written it,
/// but a product, which writes instead of adding.
/// `frame.add_to(parameter)` gives it: memory that the step has not written yet, or what backwards have added so far.
/// In the first half of a backward that runs in two, what the frame adds by products and `..._into` is noted; who asks
/// for the memory itself adds now, and so does the rest of the call.
template <class Frame, class Parameter>
class gradient_sum {
 public:
  /// Of `parameter`. `note`, if any, lists it in the second half.
  gradient_sum(Frame& frame, Parameter& parameter, weight_note* note = nullptr) noexcept
      : frame_(&frame), parameter_(&parameter), note_(note) {}

  /// The memory as a pointer, in another shape, or as a view; zeros where the step has not written it.
  [[nodiscard]] auto* data() const { return zeroed().data(); }
  template <std::size_t Rank>
  [[nodiscard]] auto as(where at = where::current()) const {
    return zeroed().template as<Rank>(at);
  }
  template <class T, std::size_t Rank>
    requires std::convertible_to<decltype(std::declval<const Parameter&>().gradient_values()), view<T, Rank>>
  operator view<T, Rank>() const {
    return zeroed();
  }

  /// For products: the memory as it is, and whether it is theirs to write.
  [[nodiscard]] auto values() const noexcept { return parameter_->gradient_values(); }
  [[nodiscard]] bool unwritten() const noexcept {
    return target() != nullptr && target()->unwritten();
  }
  [[nodiscard]] bool take_unwritten() const noexcept {
    if (!unwritten()) return false;
    target()->note_written();
    return true;
  }

  /// For the frame: its note while additions are noted, else null; the frame; who is told of contributions, or null;
  /// and the sum in a later frame, where the parameter is listed.
  [[nodiscard]] weight_note* note() const noexcept { return frame_->notes_additions() ? note_ : nullptr; }
  [[nodiscard]] Frame& frame() const noexcept { return *frame_; }
  [[nodiscard]] contribution_target* target() const noexcept { return parameter_->contribution(); }
  [[nodiscard]] gradient_sum within(Frame& later) const {
    later.list(*parameter_);
    return {later, *parameter_};
  }

 private:
  [[nodiscard]] auto zeroed() const {
    frame_->add_at_once();
    using element = std::remove_reference_t<decltype(*values().data())>;
    const auto memory = values();
    if (take_unwritten()) frame_->each(memory.size(), write_zero<element>{memory.data()});
    return memory;
  }

  Frame* frame_;
  Parameter* parameter_;
  weight_note* note_;
};

/// The gradients of several parameters, whose rows lie one behind the other, as one matrix that a product adds to.
///
///   const belay::joined_sums all{frame.add_to(query_), frame.add_to(key_), frame.add_to(value_)};
///   if (all.adjacent()) frame.product(belay::adding_to(all), belay::transposed(dy), x);
template <class Sum, std::size_t Count>
class joined_sums {
 public:
  /// Joins what `frame.add_to` gives.
  template <class... Sums>
  explicit joined_sums(const added_to<Sums>&... parts) : parts_{parts.target...} {}

  /// Whether they lie so: where they do not, each has a product of its own. While additions are noted, gradients have
  /// their memory for it.
  [[nodiscard]] bool adjacent() const {
    for (const Sum& part : parts_) part.frame().give_memory_to(part);
    return values().data != nullptr;
  }
  /// For a product: the memory of all, and whether nothing has written any of it. Where something has, the rest is
  /// zeroed.
  [[nodiscard]] auto values() const noexcept {
    return std::apply([](const auto&... part) { return joined_rows(part.values()...); }, parts_);
  }
  [[nodiscard]] bool take_unwritten() const {
    bool unwritten = true;
    for (const Sum& part : parts_) unwritten = unwritten && part.unwritten();
    for (const Sum& part : parts_) {
      if (unwritten)
        static_cast<void>(part.take_unwritten());
      else
        static_cast<void>(part.data());
    }
    return unwritten;
  }

  /// As those of one sum: its note is the last one's.
  [[nodiscard]] weight_note* note() const noexcept { return parts_[Count - 1].note(); }
  [[nodiscard]] auto& frame() const noexcept { return parts_[0].frame(); }
  template <class Frame>
  [[nodiscard]] joined_sums within(Frame& later) const {
    joined_sums moved(*this);
    for (Sum& part : moved.parts_) part = part.within(later);
    return moved;
  }

 private:
  std::array<Sum, Count> parts_;
};
template <class Sum, class... Sums>
joined_sums(const added_to<Sum>&, const added_to<Sums>&...) -> joined_sums<Sum, 1 + sizeof...(Sums)>;

/// The purpose of a call. `owing`: a backward will follow. `observing`: a forward that owes nothing (evaluation, or the
/// first pass of a recomputed layer). `replaying`: the recompute, which reads what was remembered.
enum class frame_mode : std::uint8_t { owing, observing, replaying };

/// The words for an output that is asked for too late.
inline constexpr const char* step_ended = "after its step has ended";

/// Which layer and micro-batch a call belongs to. `layer` outlives the step.
struct invocation {
  /// Which layer is called, in which micro-batch, from where, and within which call.
  const char* layer = "";
  std::size_t layer_index = 0;
  std::size_t micro_batch = 0;
  where at;
  std::uint32_t parent = 0;

  /// This call for messages while it runs.
  [[nodiscard]] call_under_way now(layer_call what) const noexcept {
    return {what, layer, layer_index, micro_batch, at};
  }

  /// Throws the usage_error of an output that is asked for too late. Takes a copy, so that a handle whose address no
  /// one else needs stays in registers.
  [[noreturn, gnu::cold]] static void refuse_output(invocation call, const char* when, const char* file, int line);

  /// Usage errors of a parameter that is read or added to, and has no memory, and of one that is added to in a forward.
  [[noreturn, gnu::cold]] void refuse_unbound(const std::string& parameter, const char* what, bool divided) const;
  [[noreturn, gnu::cold]] void refuse_adding(const std::string& parameter) const;
  /// "scratch of layer 'head' (micro-batch 0)": memory of this call, in words.
  [[nodiscard, gnu::cold]] std::string owner_text(const char* what) const;

  /// In a handler of what this call, or work that it has queued, has thrown: throws it again with the call's name.
  [[noreturn, gnu::cold]] void rethrow(const char* what) const;
  /// Runs `work()`, which is a call of the layer: what it throws has the call's name.
  template <class Work>
  decltype(auto) run(layer_call what, Work&& work) const {
    try {
      return std::forward<Work>(work)();
    } catch (...) {
      rethrow(name(what));
    }
  }

  /// Opens an obligation of this call, whose handle holds `bytes`. The record is written in place.
  [[nodiscard]] obligation_id open(ledger& obligations, obligation_kind kind, std::size_t bytes,
                                   std::span<const std::size_t> shape, where opened_at) const {
    return obligations.open_in_place(opened_at, [&](obligation& what) {
      what.kind = kind;
      what.rank = static_cast<std::uint8_t>(shape.size() < what.shape.size() ? shape.size() : what.shape.size());
      what.parent = parent;
      what.layer_index = layer_index;
      what.micro_batch = micro_batch;
      what.bytes = bytes;
      for (std::size_t axis = 0; axis < what.rank; ++axis) what.shape[axis] = shape[axis];
      what.layer = layer;
      what.opened_at = opened_at;
    });
  }
};

/// The memory of one invocation: what it keeps until its backward, and what its recompute reads again.
struct invocation_memory {
  /// Regions that a layer may remember.
  static constexpr std::size_t max_remembered = 4;

  /// Leases that live until the backward: what was kept, and what was remembered, in order.
  lease_chain kept;
  lease_chain remembered;
  std::array<std::byte*, max_remembered> remembered_at{};
  std::size_t remembered_count = 0;
};

/// Work of a call for a stream that runs it later: what it throws names the call.
template <class Work>
struct work_of_call {
  /// It fits where the work does.
  static constexpr std::size_t label_bytes = 32;

  /// The work, and the call: its layer, the site of its forward, its numbers.
  Work work;
  const char* layer;
  const char* file;
  std::int32_t line;
  std::uint32_t layer_index, micro_batch;

  /// Runs the work.
  void operator()() const {
    try {
      work();
    } catch (...) {
      invocation{layer, layer_index, micro_batch, {file, "", line}}.rethrow("work that it has queued");
    }
  }
};

/// A parameter with a gradient, to which backwards add.
template <class Parameter>
concept contributes = requires(Parameter& parameter) {
  { parameter.contribution() } -> std::same_as<contribution_target*>;
  parameter.gradient_values();
};

template <class Engine>
class frame : public frame_arithmetic<frame<Engine>> {
 public:
  /// `call` and `memory` belong to the handle and outlive the frame.
  frame(Engine& engine, const invocation& call, frame_mode mode, invocation_memory& memory) noexcept
      : engine_(&engine), call_(&call), memory_(&memory), mode_(mode) {}
  frame(Engine& engine, invocation&& call, frame_mode mode, invocation_memory& memory) = delete;
  frame(const frame&) = delete;  // scratch belongs to one call
  frame& operator=(const frame&) = delete;
  ~frame() { engine_->activations().release(scratch_); }

  /// Memory until this invocation's backward is done, for outputs and what the backward needs. Not zeroed.
  template <class T, std::size_t Rank>
  [[nodiscard]] view<T, Rank> keep(extents<Rank> shape) {
    return lease<T>(shape, memory_->kept, lease_purpose::kept, "kept memory");
  }

  /// Memory until the enclosing scratch scope ends. The call itself is such a scope. Not zeroed.
  template <class T, std::size_t Rank>
  [[nodiscard]] view<T, Rank> scratch(extents<Rank> shape) {
    return lease<T>(shape, scratch_, lease_purpose::scratch, "scratch");
  }

  /// Memory that survives from a forward to its recompute, which gets the same bytes in the same order of calls. In an
  /// ordinary forward it is kept; in evaluation it ends with the output. Not zeroed.
  template <class T, std::size_t Rank>
  [[nodiscard]] view<T, Rank> remember(extents<Rank> shape) {
    std::byte*& at = memory_->remembered_at.at(next_remembered_++);
    if (!replaying()) {
      at = engine_->activations().lease_bytes(bytes_of<T>(shape, "remembered memory"), memory_->remembered, call_->at,
                                              mark_of<T>(lease_purpose::remembered));
      memory_->remembered_count = next_remembered_;
    } else if (next_remembered_ > memory_->remembered_count) {
      throw usage_error("a recompute remembers more than its forward did", call_->at);
    }
    return {reinterpret_cast<T*>(at), shape};
  }

  /// Ends, when destroyed, all scratch memory leased since it was made.
  class scratch_scope_guard {
   public:
    /// Scratch memory that is leased from here on ends with the guard.
    explicit scratch_scope_guard(frame& owner) noexcept : owner_(&owner), outer_(std::exchange(owner.scratch_, {})) {}
    scratch_scope_guard(const scratch_scope_guard&) = delete;
    scratch_scope_guard& operator=(const scratch_scope_guard&) = delete;
    ~scratch_scope_guard() {
      owner_->engine_->activations().release(owner_->scratch_);
      owner_->scratch_ = outer_;
    }

   private:
    frame* owner_;
    lease_chain outer_;
  };
  /// Begins a scratch scope: memory that is scratch from here on ends with the result.
  [[nodiscard]] scratch_scope_guard scratch_scope() noexcept { return scratch_scope_guard{*this}; }

  /// The kit that computes, for a customisation point such as an attention of one's own.
  [[nodiscard]] auto& kit() const noexcept { return engine_->kit(); }

  /// Where kernels of this call note what they find, such as an index that is none: a part of the kernel. The commit
  /// reads it.
  [[nodiscard]] kernel::findings_note found(where at) const noexcept {
    return {engine_->found(),
            {call_->layer, at.file, at.line, static_cast<std::uint32_t>(call_->layer_index),
             static_cast<std::uint32_t>(call_->micro_batch)}};
  }
  [[nodiscard]] kernel::findings_note found() const noexcept { return found(call_->at); }

  /// Queues `work()` on the compute stream: trivially copyable, at most 288 bytes, and what it points to lives until it
  /// has run. So it captures pointers, sizes and views by value, and nothing of this call by reference. What it throws,
  /// the step throws when it waits for the stream, at the latest its commit, with the names of layer and micro-batch.
  /// A rehearsal does not run it.
  template <std::invocable Work>
  void run(const Work& work) {
    auto& stream = engine_->compute();
    if constexpr (requires(typename Engine::stream_type& given) { given.immediate(); }) {  // nvcc sees its type alone
      if (stream.immediate())
        stream.run(work);  // the call names itself
      else
        stream.run(work_of_call<Work>{work, call_->layer, call_->at.file, call_->at.line,
                                      static_cast<std::uint32_t>(call_->layer_index),
                                      static_cast<std::uint32_t>(call_->micro_batch)});
    } else {
      stream.run(work);
    }
  }
  /// Runs `work()` here, on the calling thread, once all that is queued is over; it may capture anything, and throw. A
  /// rehearsal does not run it.
  template <std::invocable Work>
  void run_on_host(Work&& work) {
    engine_->run_on_host(std::forward<Work>(work), call_->at);
  }

  /// Where this backward adds to the gradient of `parameter`, of the shape of its local part: a product adds to it, a
  /// kernel takes its `data()`, or it as a view. Nothing has zeroed it: the first product of a step overwrites it, and
  /// for a kernel it is zeroed first, in the order of the stream. The handle's backward contributes the parameter to
  /// the step, once per call, however often it is asked for. A usage_error in a forward.
  template <class Parameter>
  [[nodiscard]] auto add_to(Parameter& parameter) {
    static_assert(contributes<Parameter>,
                  "belay: a frozen parameter has no gradient to add to: make it belay::trainable, or leave it out of "
                  "the backward");
    if constexpr (contributes<Parameter>) {
      using sum_type = gradient_sum<frame, Parameter>;
      if (notes_additions()) return adding_to(sum_type{*this, parameter, &note(parameter)});
      list(parameter);
      return adding_to(sum_type{*this, parameter});
    }
  }
  /// This call of a backward adds nothing to `parameter`, and says so: a parameter of which nothing is heard is named
  /// by the commit.
  template <class Parameter>
  void adds_nothing(Parameter& parameter) {
    static_assert(contributes<Parameter>, "belay: a frozen parameter has no gradient: the backward need not name it");
    if constexpr (contributes<Parameter>) {
      const auto zeros = add_to(parameter);
      add(zeros, [](frame&, const auto& total) { static_cast<void>(total.data()); });
    }
  }
  /// The local part of `parameter`'s values, to read, good until this call returns: a backward reads them anew, because
  /// a layer that is gathered has them elsewhere then. A usage_error where it has no memory.
  template <class Parameter>
  [[nodiscard]] auto read(const Parameter& parameter) const {
    const auto values = parameter.values();
    if (values.data() == nullptr && values.size() != 0) [[unlikely]]
      refuse_unbound(parameter, "read");
    return values;
  }

  /// The call is a backward from here on: what it adds to goes to `list`.
  void begin_backward(contribution_list& list) noexcept { contributions_ = &list; }
  /// The call is the first half of a backward from here on: what it would add is noted in `noting`, unless the layer
  /// asks for a gradient's memory.
  void begin_input_half(contribution_list& list, weight_noting& noting) noexcept {
    contributions_ = &list;
    noting_ = &noting;
  }
  /// The call runs within the backward of `outer` from here on: what it adds to goes to the list of that backward.
  void begin_backward_within(const frame& outer) noexcept {
    contributions_ = outer.contributions_;
    noting_ = outer.noting_;
  }
  /// Whether additions to gradients are noted for later. What they read is then not to be written again in this call:
  /// a layer that would asks, and takes other memory.
  [[nodiscard]] bool notes_additions() const noexcept { return noting_ != nullptr && !noting_->closed; }
  /// Runs what is noted, here and now; from here on nothing is noted.
  void add_at_once() {
    if (!notes_additions()) return;
    noting_->closed = true;
    run_notes(noting_->notes);
  }
  /// Runs the notes of a call in order, and lets go of what they read.
  void run_notes(weight_note_list& notes);
  /// For `frame_arithmetic`: adds `work(frame, total)` to `total` now, or notes it. It reads `reads` alone, operands
  /// and views, and is kept by value.
  template <class Sum, class Work, class... Read>
  void add(const added_to<Sum>& total, const Work& work, const Read&... reads) {
    if constexpr (requires { total.target.note(); }) {
      if (weight_note* const listed = total.target.note(); listed != nullptr)
        return note_work(*listed, total.target, work, reads...);
    }
    work(*this, total);
  }

  /// Opens and closes an obligation of this call.
  [[nodiscard]] obligation_id open(obligation_kind kind, std::size_t bytes, std::span<const std::size_t> shape,
                                   where at) {
    return call_->open(engine_->obligations(), kind, bytes, shape, at);
  }
  void close(obligation_id id, where at = where::current()) { engine_->obligations().close(id, at); }

  /// The call as its layer may ask for it: whether nothing runs, no backward comes, or a forward is repeated; its
  /// names.
  [[nodiscard]] bool rehearsing() const noexcept { return engine_->rehearsing(); }
  [[nodiscard]] bool forward_only() const noexcept { return mode_ == frame_mode::observing; }
  [[nodiscard]] bool replaying() const noexcept { return mode_ == frame_mode::replaying; }
  [[nodiscard]] const invocation& call() const noexcept { return *call_; }
  [[nodiscard]] const char* layer() const noexcept { return call_->layer; }
  [[nodiscard]] std::size_t layer_index() const noexcept { return call_->layer_index; }
  [[nodiscard]] std::size_t micro_batch() const noexcept { return call_->micro_batch; }
  [[nodiscard]] Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] invocation_memory& memory() noexcept { return *memory_; }

 private:
  template <class, class>
  friend class gradient_sum;
  template <class, std::size_t>
  friend class joined_sums;

  template <class Parameter>
  [[gnu::cold, gnu::noinline]] void refuse_unbound(const Parameter& parameter, const char* what) const {
    if (rehearsing()) return;
    bool divided = false;
    if constexpr (requires { parameter.divided(); }) divided = parameter.divided();
    call_->refuse_unbound(printable(parameter.name()), what, divided);
  }
  [[gnu::noinline]] void give_memory_to(contribution_target& target) {
    engine_->compute().wait(target.before_memory());
    engine_->compute().wait(target.give_memory(call_->at));
  }
  template <class Parameter>
  void give_memory_to(const gradient_sum<frame, Parameter>& total) {
    contribution_target* const target = total.target();
    if (target != nullptr && target->needs_memory()) give_memory_to(*target);
  }

  // A note that lists `parameter` when it runs, and adds nothing yet.
  template <class Parameter>
  [[nodiscard]] weight_note& note(Parameter& parameter) {
    if (contributions_ == nullptr) [[unlikely]]
      call_->refuse_adding(printable(parameter.name()));
    weight_note& made = noting_->notes.append(engine_->notes());
    made.parameter = const_cast<std::remove_const_t<Parameter>*>(&parameter);  // cast back below
    made.parameter_name = parameter.name();
    made.run = [](void* in, weight_note& one) {
      static_cast<frame*>(in)->list(*static_cast<Parameter*>(one.parameter));
    };
    return made;
  }
  template <class Sum, class Work>
  struct noted_addition {
    Sum total;
    Work work;
  };
  // The last note takes the work, if it has none: notes run in the order of additions.
  template <class Sum, class Work, class... Read>
  void note_work(weight_note& listed, const Sum& total, const Work& work, const Read&... reads) {
    using noted = noted_addition<Sum, Work>;
    static_assert(sizeof(noted) <= weight_note::work_bytes && sizeof...(Read) <= weight_note::most_operands);
    static_assert(std::is_trivially_destructible_v<noted>);
    weight_note& made = note_for_work(listed);
    ::new (static_cast<void*>(made.work.data())) noted{total, work};
    made.run = [](void* in, weight_note& one) {
      frame& later = *static_cast<frame*>(in);
      const noted& what = *std::launder(reinterpret_cast<const noted*>(one.work.data()));
      what.work(later, adding_to(what.total.within(later)));
    };
    hold_reads(made, std::array<noted_bytes, sizeof...(Read)>{noted_bytes::of(reads)...});
  }
  [[nodiscard]] weight_note& note_for_work(weight_note& listed);
  void hold_reads(weight_note& made, std::span<const noted_bytes> reads);

  // Of streams whose memory the host addresses, in their order.
  static constexpr bool takes_fingerprints =
      checked(check_level::local) && requires(typename Engine::stream_type& given) { given.immediate(); };
  template <class Parameter>
  void list(Parameter& parameter) {
    if (contributions_ == nullptr) [[unlikely]]
      call_->refuse_adding(printable(parameter.name()));
    contribution_target* const target = parameter.contribution();
    if (target != nullptr && target->needs_memory()) [[unlikely]]
      give_memory_to(*target);
    if (parameter.gradient_values().data() == nullptr && parameter.gradient_values().size() != 0) [[unlikely]]
      refuse_unbound(parameter, "added to");
    if (target != nullptr) contributions_->add(*target);
  }

  template <class T, std::size_t Rank>
  [[nodiscard]] view<T, Rank> lease(extents<Rank> shape, lease_chain& chain, lease_purpose purpose, const char* what) {
    std::byte* const first =
        engine_->activations().lease_bytes(bytes_of<T>(shape, what), chain, call_->at, mark_of<T>(purpose));
    return {reinterpret_cast<T*>(first), shape};
  }
  template <class T>
  [[nodiscard]] lease_mark mark_of(lease_purpose purpose) noexcept {
    if (rehearsing()) return {};
    std::uint16_t& owner = owners_[static_cast<std::size_t>(purpose)];
    if (owner != 0) return {kind_of_element<T>(), owner};
    const lease_mark made = engine_->activations().mark_of(
        kind_of_element<T>(), {purpose, call_->layer, "", call_->layer_index, call_->micro_batch, 0, call_->at});
    owner = made.owner();
    return made;
  }
  template <class T, std::size_t Rank>
  [[nodiscard]] std::size_t bytes_of(const extents<Rank>& shape, const char* what) const {
    const auto owner = [&] { return call_->owner_text(what); };
    return tensor_bytes<T>(shape, owner, call_->at);
  }

  Engine* engine_;
  const invocation* call_;
  invocation_memory* memory_;
  frame_mode mode_;
  contribution_list* contributions_ = nullptr;  // of the backward that runs, or null
  weight_noting* noting_ = nullptr;             // of a first half
  lease_chain scratch_;
  std::size_t next_remembered_ = 0;
  std::array<std::uint16_t, 3> owners_{};  // by purpose, once it was asked
};

template <class Engine>
void frame<Engine>::run_notes(weight_note_list& notes) {
  notes.consume(engine_->notes(), [this](weight_note& one) {
    if constexpr (takes_fingerprints)
      if (one.adds) run(expected_fingerprint{{one, &one.fingerprint}, one.parameter_name});
    one.run(this, one);
  });
}

template <class Engine>
weight_note& frame<Engine>::note_for_work(weight_note& listed) {
  const bool is_last = noting_->notes.ends_with(listed) && !listed.adds;
  weight_note& made = is_last ? listed : noting_->notes.append(engine_->notes());
  made.parameter_name = listed.parameter_name;
  made.adds = true;
  return made;
}

template <class Engine>
void frame<Engine>::hold_reads(weight_note& made, std::span<const noted_bytes> reads) {
  for (const noted_bytes& bytes : reads)
    if (bytes.bytes() > 0) made.reads[made.read_count++] = {bytes, engine_->hold(bytes.first)};
  if constexpr (takes_fingerprints) run(noted_fingerprint{made, &made.fingerprint});
}

#if defined(BELAY_SEPARATE_COMPILATION)
extern template void frame<host_engine>::run_notes(weight_note_list&);
extern template weight_note& frame<host_engine>::note_for_work(weight_note&);
extern template void frame<host_engine>::hold_reads(weight_note&, std::span<const noted_bytes>);
#endif

/// Memory of a layer's call, as `keep<float>(frame, {rows, width})`; see `frame`.
template <class T, std::size_t Rank, class Frame>
[[nodiscard]] view<T, Rank> keep(Frame& frame, const std::size_t (&shape)[Rank]) {
  return frame.template keep<T>(extents_of(shape));
}
template <class T, std::size_t Rank, class Frame>
[[nodiscard]] view<T, Rank> scratch(Frame& frame, const std::size_t (&shape)[Rank]) {
  return frame.template scratch<T>(extents_of(shape));
}
template <class T, std::size_t Rank, class Frame>
[[nodiscard]] view<T, Rank> remember(Frame& frame, const std::size_t (&shape)[Rank]) {
  return frame.template remember<T>(extents_of(shape));
}
/// Memory of a layer's call with the shape of a view, as `keep<float>(frame, x.shape())`; see `frame`.
template <class T, std::size_t Rank, class Frame>
[[nodiscard]] view<T, Rank> keep(Frame& frame, const extents<Rank>& shape) {
  return frame.template keep<T>(shape);
}
template <class T, std::size_t Rank, class Frame>
[[nodiscard]] view<T, Rank> scratch(Frame& frame, const extents<Rank>& shape) {
  return frame.template scratch<T>(shape);
}
template <class T, std::size_t Rank, class Frame>
[[nodiscard]] view<T, Rank> remember(Frame& frame, const extents<Rank>& shape) {
  return frame.template remember<T>(shape);
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/step/frame.ipp"  // IWYU pragma: export
#endif
