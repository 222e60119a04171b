// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A parameter store out of its class: a program links those of ranks of the host, and compiles others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/parallel/divisor.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/train/stage_names.hpp"
#include "belay/train/store.hpp"

namespace belay::inline BELAY_ABI {

/// The parameters of one rank of a tensor axis. Its ranks must agree on the list, and on the first values of those that
/// the axis does not cut: otherwise copies drift apart, and the loss is merely worse.
template <class T>
class tensor_copies {
 public:
  void add(const parameter_base<T>& parameter) {
    parameters_.push_back(&parameter);
    kinds_.push_back(content_hash().add_text(parameter.name()).add(parameter.global_size()).value());
    // Ranks differ in the values of a parameter that is cut or divided.
    const bool whole = !parameter.cut_directions().has(axis::tensor) && !parameter.divided();
    content_hash values;
    if (whole)
      parameter.each_kept(
          [&](std::size_t, std::span<const T> kept) { values.add_bytes(kept.data(), kept.size_bytes()); });
    values_.push_back(whole ? values.value() : rank_comparison::abstains);
  }

  /// Throws usage_error on all ranks of `along`, a tensor axis, where they differ. Collective.
  template <can_all_gather<std::uint64_t> Group>
  void expect_equal(const Group& along, where at) const {
    rank_comparison compared;
    const std::uint64_t count[] = {parameters_.size()};
    if (compared.differ(along, count, at))
      throw usage_error(
          "along the tensor axis ranks list different numbers of parameters (" + compared.text(along) + ")", at);
    if (compared.differ(along, kinds_, at))
      throw usage_error(compared.ranks(along) + " along the tensor axis list different parameters: their number " +
                            std::to_string(compared.first()) + " is " + name_of(compared) + " here",
                        at);
    if (compared.differ(along, values_, at))
      throw usage_error(compared.ranks(along) + " along the tensor axis begin with different values of parameter " +
                            name_of(compared) +
                            ", which it does not cut: initialise it with one seed, or fill it from "
                            "one source",
                        at);
  }

 private:
  [[nodiscard]] std::string name_of(const rank_comparison& compared) const {
    return printable(parameters_[compared.first()]->name());
  }

  std::vector<const parameter_base<T>*> parameters_;
  std::vector<std::uint64_t> kinds_, values_;
};

template <class Run, class Precision>
double parameter_store<Run, Precision>::norm_of(std::size_t parameter) const noexcept {
  return norm_.of_parameter(norm_places_[parameter].parameter);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::fill(std::uint64_t seed, where at) {
  this->rewrite([&] { write_first_values(seed, at); }, at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::begin(const step_start& start, where at) {
  if (unapplied_ != 0) throw usage_error(unapplied_text(std::exchange(unapplied_, 0)), at);
  this->note_micro_batches(start.micro_batches);
  if (buckets_.in_step()) return buckets_.begin_again(start.micro_batches, at);
  if (gathers_) gathers_->retire(at);
  // A store that one rank forgets would be waited for in the comparison of another.
  if (!std::exchange(compared_, true)) {
    expect_agreement(*mesh_, start.participants, at);
    compare_along_tensor(at);
  }
  this->expect_plan_compared(at);
  buckets_.begin_unwritten(start.micro_batches, at);
  gathers_compared_ = false;
  if (gathers_) gathers_->begin_step(run_->engine(), at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::compare(order_of_step own, where at) {
  if (gathers_ && !std::exchange(gathers_compared_, true)) gathers_->expect_one_order(own, at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::finish(const divisor_value& divisor, where at) {
  end_gathers(order_of_step::executed, at);
  static_cast<void>(reduced_.emplace(divisor.where_it_is == divisor_value::counted::on_this_rank
                                         ? buckets_.finish(local_targets{divisor.count}, mesh_->replicas(), at)
                                         : buckets_.finish(target_tokens{divisor.count, at}, at)));
  squares_ = this->rehearsed() ? 0
                               : norm_.template squares_over<group_type>(
                                     *reduced_, *mesh_, buckets_.updates().last(observer_turn::queues_work), at);
}

template <class Run, class Precision>
auto parameter_store<Run, Precision>::reduced() const -> reduced_sums {
  return reduced_ ? reduced_sums{squares_, reduced_->targets(), true} : reduced_sums{};
}

template <class Run, class Precision>
std::string parameter_store<Run, Precision>::not_finite() const {
  std::string first;
  std::size_t more = 0;
  for (std::size_t p = 0; p < buckets_.parameters(); ++p) {
    if (is_finite(norm_of(p))) continue;
    if (first.empty())
      first = ": parameter " + printable(buckets_.parameter(p).name());
    else
      ++more;
  }
  return more == 0 ? first : first + " and " + std::to_string(more) + " more";
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::each_not_finite(function_ref<void(double)> see) const {
  for (std::size_t p = 0; p < buckets_.parameters(); ++p)
    if (const double norm = norm_of(p); !kernel::are_finite(&norm, 1)) see(norm);
}

template <class Run, class Precision>
auto parameter_store<Run, Precision>::take_part() noexcept -> committed_part {
  committed_part out{*this, std::move(*reduced_), squares_};
  reduced_.reset();
  return out;
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::abandon(where at) {
  end_gathers(order_of_step::abandoned, at);
  buckets_.abandon(mesh_->replicas(), at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::withdraw() noexcept {
  reduced_.reset();
  if (gathers_) gathers_->end_step();
  buckets_.withdraw();
}

template <class Run, class Precision>
update_observation parameter_store<Run, Precision>::observe(update_observer& observer, observer_turn turn, where at) {
  return buckets_.updates().add(observer, turn, at);
}

template <class Run, class Precision>
std::uint64_t parameter_store<Run, Precision>::fingerprint() const {
  return fnv1a().add_text("parameter_store").add(buckets_.updates().updated_with()).value();
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::gathers_in(gathers_begin when) noexcept {
  if (gathers_) gathers_->begin_gathers(when);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::begin_body(where at) {
  if (gathers_) gathers_->begin_in(run_->engine().compute(), at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::end_body(where at) {
  auto& stream = run_->engine().compute();
  if (gathers_) gathers_->end_in(stream, at);
  buckets_.join(stream, at);
}

template <class Run, class Precision>
std::string parameter_store<Run, Precision>::unapplied_text(std::uint64_t step) {
  return "the gradients of step " + std::to_string(step) +
         " were committed, and neither applied nor discarded: optimizer.apply(std::move(*ok), {...}), or "
         "std::move(*ok).discard()";
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::note_unapplied(std::uint64_t step) noexcept {
  unapplied_ = step;
  try {
    if (std::uncaught_exceptions() == 0)
      run_->engine().note_refusal(unapplied_text(step), run_->engine().step_site()) = true;
  } catch (...) {  // no memory for the text
  }
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::end_gathers(order_of_step own, where at) {
  if (!gathers_) return;
  compare(own, at);
  gathers_->end_step();
  gathers_->retire(at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::write_first_values(std::uint64_t seed, where at) {
  if (this->rehearsed()) return;
  const auto write = [&](parameter_base<value_type>& parameter) {
    if (parameter.spec().first_values.how() != initial::initializer::filled) parameter.initialise(seed, at);
  };
  for (std::size_t p = 0; p < buckets_.parameters(); ++p) write(buckets_.parameter(p));
  for (const auto& one : frozen_.members()) write(*one.parameter);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::expect_names_apart(where at) const {
  if (this->rehearsed() || mesh_->shape().pipeline == 1) return;
  stage_names own;
  for (std::size_t p = 0; p < buckets_.parameters(); ++p) own.add_trained(buckets_.parameter(p).name());
  for (const auto& one : frozen_.members()) own.add_frozen(one.parameter->name());
  own.expect_apart(*mesh_, at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::compare_along_tensor(where at) {
  if (this->rehearsed() || mesh_->shape().tensor == 1) return;
  tensor_copies<value_type> own;
  for (std::size_t p = 0; p < buckets_.parameters(); ++p) own.add(buckets_.parameter(p));
  for (const auto& one : frozen_.members()) own.add(*one.parameter);
  own.expect_equal(mesh_->tensor(at), at);
}

template <class Run, class Precision>
void parameter_store<Run, Precision>::expect_even(const parameter_base<value_type>& parameter, std::size_t elements,
                                                  where at) {
  if (parameter.local_size() == elements) return;
  throw usage_error("parameter " + printable(parameter.name()) + ": box " + parameter.local_box().text() + " has " +
                        std::to_string(parameter.local_size()) + " elements, even cuts give this rank of the mesh " +
                        std::to_string(elements) + ": make it of the mesh, parameter{spec, mesh}",
                    at);
}

template <class Run, class Precision>
parameter_store<Run, Precision>::parameter_store(Run& run, const mesh& mesh, listed_parameters found,
                                                 std::vector<held_stage> stages, store_options options, where at)
    : memory(run, mesh, std::move(found.stored), std::move(stages), options, found.norm.unit(), at),
      norm_places_(found.places),
      norm_(found.norm, std::move(found.places),
            run.template lease<double>(tier::host, found.norm.entries(), "gradient norm", at), at) {
  write_first_values(options.seed, at);
  if (this->reaches_) this->expect_plan_compared(at);  // which ends on no rank before the values are there
  expect_names_apart(at);
  if (mesh.shape().tensor > 1) static_cast<void>(mesh.tensor(at));  // of the norm
}

template <class Run, class Precision>
parameter_store<Run, Precision>::~parameter_store() = default;

}  // namespace belay::inline BELAY_ABI
