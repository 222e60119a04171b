// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The order of a row's actions. Received activations live until the backward of their micro-batch, received gradients
// until it is over, and what is sent until its exchange is over.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "belay/comm/pending.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/view.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/pipeline/runner.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule/play.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::size_t tensor_between_stages::bytes_of(std::span<const std::size_t> shape, std::size_t element_bytes,
                                                       where at) {
  checked_size bytes = element_bytes;
  for (const std::size_t extent : shape) bytes *= extent;
  if (!bytes.fits()) refuse_tensor(shape, element_bytes, [] { return std::string(name(tier::device)) + " tier"; }, at);
  return bytes.saturated();
}

BELAY_DECL std::span<std::byte> tensor_between_stages::arriving(boundary_elements of, std::byte* leased,
                                                                std::size_t bytes) noexcept {
  elements_ = bytes / of.wire.bytes;
  waits_ = of.rounded;
  (of.rounded ? on_wire_ : values_) = leased;
  return {leased, bytes};
}

BELAY_DECL std::span<std::byte> tensor_between_stages::receive(stage_engine& engine, const stream_event& ready,
                                                               boundary_elements of, std::span<const std::size_t> shape,
                                                               where at) {
  const std::size_t bytes = bytes_of(shape, of.wire.bytes, at);
  lease_chain& chain = of.rounded ? wire_memory_ : memory_;
  std::byte* const leased =
      engine.memory().lease_bytes_for(stream_kind::communication, ready, bytes, chain, at, {of.wire.kind, 0});
  return arriving(of, leased, bytes);
}

BELAY_DECL std::span<std::byte> tensor_between_stages::lease(stage_engine& engine, boundary_elements of,
                                                             std::span<const std::size_t> shape, where at) {
  const std::size_t bytes = bytes_of(shape, of.wire.bytes, at);
  lease_chain& chain = of.rounded ? wire_memory_ : memory_;
  return arriving(of, engine.memory().lease_bytes(bytes, chain, at, {of.wire.kind, 0}), bytes);
}

BELAY_DECL void tensor_between_stages::widen(stage_engine& engine, boundary_elements of, where at) {
  if (!waits_) return;  // nothing was received, or it was used before
  const std::size_t bytes = bytes_of({&elements_, 1}, of.exact.bytes, at);
  values_ = engine.memory().lease_bytes(bytes, memory_, at, {of.exact.kind, 0});
  engine.widen(on_wire_, values_, elements_);
  engine.memory().release(wire_memory_);
  on_wire_ = nullptr;
  waits_ = false;
}

BELAY_DECL std::span<const std::byte> tensor_between_stages::round(stage_engine& engine, boundary_elements of,
                                                                   stage_tensor exact, where at) {
  const std::size_t bytes = bytes_of({&exact.elements, 1}, of.wire.bytes, at);
  if (!of.rounded) return {static_cast<const std::byte*>(exact.data), bytes};
  std::byte* const rounded = engine.memory().lease_bytes(bytes, wire_memory_, at, {of.wire.kind, 0});
  on_wire_ = rounded;
  engine.round(exact.data, rounded, exact.elements);
  return {rounded, bytes};
}

BELAY_DECL void tensor_between_stages::release(stage_engine& engine) noexcept {
  engine.memory().release(memory_);
  engine.memory().release(wire_memory_);
  forget();
}

/// Two actions that have run beside each other share their time by their lengths.
inline void put_one_after_other(executed_action& first, executed_action& second) noexcept {
  const std::int64_t begin = lesser_of(first.begin, second.begin), end = greater_of(first.end, second.end);
  const double own = static_cast<double>(first.end - first.begin),
               other = static_cast<double>(second.end - second.begin);
  const double share = own + other > 0 ? own / (own + other) : 0;
  const std::int64_t between = begin + static_cast<std::int64_t>(share * static_cast<double>(end - begin));
  first.begin = begin, first.end = second.begin = between, second.end = end;
}

BELAY_DECL pipeline_times times_of_spans(std::span<const traced_span* const> spans,
                                         std::span<executed_action> actions) noexcept {
  pipeline_times out;
  const auto is_over = [](const traced_span* each) { return each != nullptr && each->over(); };
  const bool known = std::all_of(spans.begin(), spans.end(), is_over);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    executed_action& done = actions[i];
    done.begin = done.end = 0;
    if (!known) continue;
    done.begin = spans[i]->begin, done.end = spans[i]->end;
  }
  for (std::size_t i = 0; known && i + 1 < spans.size(); ++i)
    if (actions[i].paired) put_one_after_other(actions[i + 1], actions[i]);
  for (std::size_t i = 0; known && i < spans.size(); ++i)
    out.add(actions[i].kind, actions[i].exchanged, 1e-9 * static_cast<double>(actions[i].end - actions[i].begin));
  if (!known || spans.empty()) return out;
  // An exchange is as long as the stream has waited for it, which it does after actions that follow it in the row.
  std::int64_t first = actions[0].begin, last = actions[0].end;
  for (const executed_action& each : actions) first = lesser_of(first, each.begin), last = greater_of(last, each.end);
  out.phase = 1e-9 * static_cast<double>(last - first);
  return out;
}

BELAY_DECL pipeline_runner::pipeline_runner(group of, schedule::dynamic_table table, boundary_elements elements,
                                            std::span<const std::size_t> boundary, where at)
    : group_(std::move(of)),
      table_(std::move(table)),
      elements_(elements),
      boundary_(boundary.begin(), boundary.end()),
      received_(2 * table_.micro_batches() * table_.chunks()) {
  if (static_cast<std::size_t>(group_.size()) != table_.ranks()) {
    throw usage_error("a schedule of " + std::to_string(table_.ranks()) + " stages runs on as many ranks, not " +
                          std::to_string(group_.size()),
                      at);
  }
  const auto proven = proof(table_);
  if (!proven.valid()) throw usage_error("this schedule cannot run: " + explain(proven.reason), at);
  for (const schedule::action& next : row()) {
    if (schedule::is_beside(next.kind))
      throw usage_error("schedule " + std::string(table_.name()) + " has an action beside its computes, " +
                            name(next.kind) +
                            ", and a pipeline runs computes and exchanges alone: stage and store are told what they "
                            "offload, recompute and gather",
                        at);
    in_halves_ = in_halves_ || next.kind == schedule::action_kind::input_gradient;
    executed_.push_back({next.kind, next.micro_batch, next.is_exchange(), 0, 0, next.chunk, false});
  }
  transfers_->resize(executed_.size());
  spans_of_device_.resize(executed_.size());
}

BELAY_DECL schedule::position pipeline_runner::place(std::size_t chunk) const noexcept {
  return {table_.stage(rank(), chunk), table_.stages(), table_.micro_batches()};
}

BELAY_DECL void pipeline_runner::expect_stages(std::size_t given, where at) const {
  if (given == table_.chunks()) return;
  throw usage_error("schedule " + std::string(table_.name()) + " has " + std::to_string(table_.chunks()) +
                        " stages on each rank, and this rank gives " + std::to_string(given),
                    at);
}

BELAY_DECL traced_span* pipeline_runner::add_span(span_log* to, const schedule::action& next) {
  if (to == nullptr) return nullptr;
  const bool waits = next.is_exchange();
  return to->add({.name = waits ? "wait for neighbours" : name(next.kind),
                  .micro_batch = waits ? traced_span::none : static_cast<std::uint32_t>(next.micro_batch),
                  .kind = waits ? span_kind::wait : span_kind::action,
                  .lane = span_lane::compute});
}

BELAY_DECL void pipeline_runner::begin_phase() noexcept { times_ = {}, last_ = monotonic_clock::now(); }

BELAY_DECL void pipeline_runner::end_action(std::size_t number, traced_span* traced) noexcept {
  executed_action& done = executed_[number];
  done.end = monotonic_clock::now();
  done.begin = std::exchange(last_, done.end);
  times_.add(done.kind, done.exchanged, 1e-9 * static_cast<double>(done.end - done.begin));
  if (traced != nullptr) traced->begin_at(done.begin), traced->end_at(done.end);
}

BELAY_DECL void pipeline_runner::begin_pair(std::size_t number) noexcept {
  for (std::size_t of : {number, number + 1}) executed_[of].begin = executed_[of].end = last_;
}

BELAY_DECL void pipeline_runner::end_turn(std::size_t number) noexcept {
  const std::int64_t now = monotonic_clock::now();
  executed_[number].end += now - std::exchange(last_, now);
}

BELAY_DECL void pipeline_runner::end_pair(std::size_t number, traced_span* traced) noexcept {
  executed_action& done = executed_[number];
  if (done.paired) {  // after the backward, which is next in the row and began
    const std::int64_t taken = done.end - done.begin;
    done.begin = executed_[number + 1].end;
    done.end = done.begin + taken;
  }
  times_.add(done.kind, false, 1e-9 * static_cast<double>(done.end - done.begin));
  if (traced != nullptr) traced->begin_at(done.begin), traced->end_at(done.end);
}

BELAY_DECL std::size_t pipeline_runner::pairs() const noexcept {
  return static_cast<std::size_t>(
      std::count_if(row().begin(), row().end(), [](const schedule::action& each) { return each.paired; }));
}

BELAY_DECL void pipeline_runner::run(stage_engine& engine, stage_interface& stages, where at) {
  if (in_halves_ && !stages.has_halves())
    throw usage_error("schedule " + std::string(table_.name()) +
                          " runs backwards in two halves, and the stage of this rank has none: it needs "
                          "backward_input(scope, dout) and weights(scope)",
                      at);
  for (tensor_between_stages& left_over : received_) left_over.forget();  // of a step that has ended early
  under_way_.reset();
  if (engine.runs_notes())
    engine.queue({[](void* self, std::size_t, traced_span*) { static_cast<pipeline_runner*>(self)->begin_phase(); },
                  this, 0, nullptr});
  else
    times_ = {};
  try {
    run_row(engine, stages, at);
  } catch (...) {
    let_exchange_end(at);
    throw;
  }
}

BELAY_DECL void pipeline_runner::let_exchange_end(where at) const noexcept {
  if (!under_way_) return;
  try {
    over_.synchronize(at);
  } catch (...) {
    // It has failed: nobody reads any more. The first error is the caller's.
  }
}

BELAY_DECL void pipeline_runner::run_row(stage_engine& engine, stage_interface& stages, where at) {
  for (std::size_t number = 0; number < row().size(); ++number) {
    const schedule::action& next = row()[number];
    const bool beside = next.paired && pair_ != nullptr;
    executed_[number].paired = beside;
    if (next.is_exchange()) {
      finish_exchange(engine, stages, at);
      start_exchange(engine, stages, number, at);
    } else {
      if (awaits(next) || (beside && awaits(row()[number + 1]))) finish_exchange(engine, stages, at);
      if (beside)
        run_pair(engine, stages, number, at);
      else
        run_timed(engine, number, [&] { compute(engine, stages, next, at); });
    }
    if (observer_ != nullptr) observer_->given(number);
    if (!beside) continue;
    ++number;
    if (observer_ != nullptr) observer_->given(number);
  }
  finish_exchange(engine, stages, at);
}

BELAY_DECL void pipeline_runner::run_pair(stage_engine& engine, stage_interface& stages, std::size_t number, where at) {
  const std::size_t behind = number + 1;
  traced_span* const spans[] = {add_span(engine.spans(), row()[number]), add_span(engine.spans(), row()[behind])};
  const bool notes = engine.runs_notes();
  const auto note = [&](void (*write)(void*, std::size_t, traced_span*), std::size_t of, traced_span* traced) {
    if (notes) engine.queue({write, this, of, traced});
  };
  const auto computes = [&](std::size_t of) {
    engine.run_timed(spans[of - number], [&, of] { compute(engine, stages, row()[of], at); });
  };
  if (!notes) spans_of_device_[number] = spans[0], spans_of_device_[behind] = spans[1];
  note([](void* self, std::size_t of, traced_span*) { static_cast<pipeline_runner*>(self)->begin_pair(of); }, number,
       nullptr);
  engine.run_beside(
      *pair_, [&] { computes(behind); }, [&] { computes(number); },
      [&](pair_turn whose) {
        note([](void* self, std::size_t of, traced_span*) { static_cast<pipeline_runner*>(self)->end_turn(of); },
             whose == pair_turn::first ? behind : number, nullptr);
      },
      at);
  for (const std::size_t of : {behind, number})
    note([](void* self, std::size_t which,
            traced_span* traced) { static_cast<pipeline_runner*>(self)->end_pair(which, traced); },
         of, spans[of - number]);
}

BELAY_DECL void pipeline_runner::run_timed(stage_engine& engine, std::size_t number, function_ref<void()> action) {
  traced_span* const traced = add_span(engine.spans(), row()[number]);
  if (!engine.runs_notes()) spans_of_device_[number] = traced;
  engine.run_timed(traced, action);
  if (!engine.runs_notes()) return;
  // In the order of the stream, whose time it is.
  engine.queue({[](void* self, std::size_t ended, traced_span* span) {
                  static_cast<pipeline_runner*>(self)->end_action(ended, span);
                },
                this, number, traced});
}

BELAY_DECL void pipeline_runner::finish_exchange(stage_engine& engine, stage_interface& stages, where at) {
  if (!under_way_) return;
  const std::size_t number = *under_way_;
  run_timed(engine, number, [&] { engine.wait(over_, at); });
  under_way_.reset();
  for (const schedule::transfer& one : row()[number].transfers()) {
    if (one.direction != schedule::transfer_direction::send) continue;
    if (one.what == schedule::payload::gradient)
      stages.release(one.chunk, one.micro_batch);
    else
      stages.let_go_of_output(one.chunk, one.micro_batch);
  }
}

BELAY_DECL bool pipeline_runner::awaits(const schedule::action& compute) const noexcept {
  if (!under_way_ || compute.kind == schedule::action_kind::weight_gradient) return false;
  const bool forward = compute.kind == schedule::action_kind::forward;
  const schedule::payload needed = forward ? schedule::payload::activation : schedule::payload::gradient;
  const auto transfers = row()[*under_way_].transfers();
  return std::any_of(transfers.begin(), transfers.end(), [&](const schedule::transfer& one) {
    return one.direction == schedule::transfer_direction::receive && one.what == needed && one.chunk == compute.chunk &&
           one.micro_batch == compute.micro_batch;
  });
}

BELAY_DECL void pipeline_runner::compute(stage_engine& engine, stage_interface& stages, const schedule::action& next,
                                         where at) {
  if (next.kind == schedule::action_kind::forward) return forward(engine, stages, next, at);
  if (next.kind == schedule::action_kind::weight_gradient) return stages.weights(next.chunk, next.micro_batch);
  backward(engine, stages, next, at);
}

BELAY_DECL void pipeline_runner::forward(stage_engine& engine, stage_interface& stages, const schedule::action& next,
                                         where at) {
  const std::size_t chunk = next.chunk, micro_batch = next.micro_batch, stage = place(chunk).stage;
  if (stage > 0 && holds(stage - 1)) {
    // The stage before is another chunk of this rank: its output stays where it is until its backward.
    const std::size_t before = table_.chunk_of(stage - 1);
    stages.forward(chunk, micro_batch, stages.output(before, micro_batch).data);
    return stages.let_go_of_output(before, micro_batch);
  }
  tensor_between_stages& activation = received(schedule::payload::activation, chunk, micro_batch);
  activation.widen(engine, elements_, at);
  stages.forward(chunk, micro_batch, activation.values());
  stages.let_go_of_input(chunk, activation.memory());
}

BELAY_DECL void pipeline_runner::backward(stage_engine& engine, stage_interface& stages, const schedule::action& next,
                                          where at) {
  const std::size_t chunk = next.chunk, micro_batch = next.micro_batch, stage = place(chunk).stage;
  const auto run_back = [&](const void* dout) {
    if (next.kind == schedule::action_kind::backward)
      stages.backward(chunk, micro_batch, dout);
    else
      stages.backward_input(chunk, micro_batch, dout);
  };
  // Notes of weights to come hold what they read of these tensors.
  if (!place(chunk).last() && holds(stage + 1)) {
    const std::size_t after = table_.chunk_of(stage + 1);
    run_back(stages.input_gradient(after, micro_batch).data);
    stages.release(after, micro_batch);
  } else {
    tensor_between_stages& gradient = received(schedule::payload::gradient, chunk, micro_batch);
    gradient.widen(engine, elements_, at);
    run_back(gradient.values());
    gradient.release(engine);
  }
  received(schedule::payload::activation, chunk, micro_batch).release(engine);
  if (stage == 0) stages.release(chunk, micro_batch);
}

BELAY_DECL void pipeline_runner::start_exchange(stage_engine& engine, stage_interface& stages, std::size_t number,
                                                where at) {
  const schedule::action& next = row()[number];
  transfer_list& transfers = (*transfers_)[number];
  // Alike at both ends: of the stage that has made the tensor.
  const auto tag_of = [&](const schedule::transfer& one) {
    const std::size_t own = place(one.chunk).stage;
    const std::size_t made_by = one.direction == schedule::transfer_direction::send ? own : partner_stage(one, own);
    const std::size_t gradient = one.what == schedule::payload::gradient ? 1 : 0;
    return static_cast<int>(2 * (made_by * table_.micro_batches() + one.micro_batch) + gradient);
  };
  std::size_t count = 0;
  std::array<tensor_between_stages, schedule::action::most_transfers> outgoing;
  for (const schedule::transfer& one : next.transfers()) {
    p2p& transfer = transfers[count];
    tensor_between_stages& sent = outgoing[count++];
    if (one.direction == schedule::transfer_direction::receive) continue;
    const stage_tensor exact = one.what == schedule::payload::activation
                                   ? stages.output(one.chunk, one.micro_batch)
                                   : stages.input_gradient(one.chunk, one.micro_batch);
    transfer = p2p::send(static_cast<int>(one.peer), sent.round(engine, elements_, exact, at), tag_of(one));
  }
  // Later work of the stream may not overtake it, nor it what the stream has queued.
  const stream_event ready = engine.record();
  count = 0;
  for (const schedule::transfer& one : next.transfers()) {
    p2p& transfer = transfers[count++];
    if (one.direction == schedule::transfer_direction::send) continue;
    const std::span<std::byte> arriving =
        received(one.what, one.chunk, one.micro_batch).receive(engine, ready, elements_, boundary_, at);
    transfer = p2p::receive(static_cast<int>(one.peer), arriving, tag_of(one));
  }
  over_ = start_transfers(engine, ready, {transfers.data(), count}, transfers_, at);
  under_way_ = number;
  for (tensor_between_stages& sent : outgoing) sent.release(engine);
}

BELAY_DECL void* pipeline_runner::receive_in_pass(stage_engine& engine, std::size_t stage,
                                                  std::span<const std::size_t> shape, tensor_between_stages& incoming,
                                                  where at) {
  const std::span<std::byte> arriving = incoming.lease(engine, elements_, shape, at);
  exchange_in_pass(engine, p2p::receive(static_cast<int>(table_.rank_of(stage - 1)), arriving), at);
  incoming.widen(engine, elements_, at);
  return incoming.values();
}

BELAY_DECL void pipeline_runner::send_in_pass(stage_engine& engine, std::size_t stage, stage_tensor output, where at) {
  tensor_between_stages outgoing;
  const int to = static_cast<int>(table_.rank_of(stage + 1));
  exchange_in_pass(engine, p2p::send(to, outgoing.round(engine, elements_, output, at)), at);
  outgoing.release(engine);
}

BELAY_DECL void pipeline_runner::exchange_in_pass(stage_engine& engine, const p2p& one, where at) {
  if (std::exchange(pass_, engine.epoch()) != engine.epoch()) in_pass_ = 0;  // what passes before had is over
  if (in_pass_ == passed_->size()) passed_->emplace_back();
  p2p& transfer = (*passed_)[in_pass_++];
  transfer = one;
  engine.wait(start_transfers(engine, engine.record(), {&transfer, 1}, passed_, at), at);
}

BELAY_DECL stream_event pipeline_runner::start_transfers(stage_engine& engine, const stream_event& ready,
                                                         std::span<const p2p> transfers,
                                                         const std::shared_ptr<const void>& kept, where at) {
  pending under_way = group_.start_exchange(transfers, start_order(after(ready, at)).keeping(kept));
  stream_event over = under_way.event();
  for (const p2p& one : transfers) engine.memory().used_until(over, one.data, one.bytes);
  std::move(under_way).in_start_order(at);
  return over;
}

BELAY_DECL void pipeline_runner::take_times_of_device() noexcept {
  times_ = times_of_spans(spans_of_device_, executed_);
  std::fill(spans_of_device_.begin(), spans_of_device_.end(), nullptr);
}

}  // namespace belay::inline BELAY_ABI
