// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The parameters of a trainer that has its own flat arrays of values and gradients and functions for layers: a model
// for `parameter_store`, whose memory is the trainer's.
//
//   belay::parameter_list<float> list{values, gradients};      // spans of one length
//   auto& table = list.add("wte", {256, 64});                  // the next 256 x 64 elements of both
//   auto& qkv = list.add("qkv", {192, 64});
//   list.add({.name = "norm", .shape = {64}, .decay = belay::weight_decay::no});
//   belay::parameter_store store{run, mesh, list, belay::zero<1>{}};
//   auto owed = belay::owe(scope, "attention", {qkv});         // see step/owed.hpp
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/parameter.hpp"

namespace belay::inline BELAY_ABI {

/// Values and gradients stay the trainer's, which has written the first values; both outlive the run: see `run.keep`.
/// The list stays where it is, and nothing is added once a store has it.
template <class T>
class parameter_list {
 public:
  using value_type = T;

  /// Throws usage_error where the two are of different lengths.
  parameter_list(std::span<T> values, std::span<compute_type_t<T>> gradients, where at = where::current())
      : values_(values), gradients_(gradients) {
    if (values.size() != gradients.size())
      throw usage_error("a parameter_list of " + std::to_string(values.size()) + " values and " +
                            std::to_string(gradients.size()) + " gradients: they are laid out alike",
                        at);
  }
  parameter_list(const parameter_list&) = delete;  // stores point to its parameters
  parameter_list& operator=(const parameter_list&) = delete;

  /// The parameter that begins where the last one ends, or at element `first` behind it. Throws usage_error where it
  /// does not fit, or begins before the last one ends.
  parameter<T>& add(std::string name, const parameter_shape& shape, where at = where::current()) {
    return add_at(end_, std::move(name), shape, at);
  }
  parameter<T>& add_at(std::size_t first, std::string name, const parameter_shape& shape, where at = where::current()) {
    return add_at(first, parameter_spec{std::move(name), shape, initial::filled()}, at);
  }
  /// Adds a parameter by its specification, which also says whether the optimizer decays the parameter and how many
  /// layers share it: `list.add({.name = "norm", .shape = {64}, .decay = belay::weight_decay::no})`. Its first values
  /// are those of the memory: throws usage_error for others.
  parameter<T>& add(parameter_spec spec, where at = where::current()) { return add_at(end_, std::move(spec), at); }
  parameter<T>& add_at(std::size_t first, parameter_spec spec, where at = where::current()) {
    const std::size_t size = spec.shape.size();
    if (first < end_ || first > values_.size() || size > values_.size() - first)
      throw usage_error("parameter " + printable(spec.name) + ": elements " + std::to_string(first) + " to " +
                            std::to_string(first + size) + " are not between the last parameter's end, " +
                            std::to_string(end_) + ", and that of the memory, " + std::to_string(values_.size()),
                        at);
    const initial& said = spec.first_values;
    if (said.how() == initial::initializer::normal ||
        (said.how() == initial::initializer::constant && said.value() != 0))
      throw usage_error("parameter " + printable(spec.name) +
                            ": a parameter_list lies over values that the trainer has written: leave first_values out",
                        at);
    spec.first_values = initial::filled();
    entries_.push_back({first, parameter<T>{std::move(spec), at}});
    end_ = first + size;
    return entries_.back().listed;
  }

  /// By number, in the order in which they were added.
  [[nodiscard]] parameter<T>& operator[](std::size_t number) noexcept { return entries_[number].listed; }

  /// Visits all parameters in order.
  void for_each_parameter(auto&& visit) {
    for (listed_parameter& each : entries_) visit(each.listed);
  }

  /// For `parameter_store`.
  [[nodiscard]] std::span<T> borrowed_values() const noexcept { return values_; }
  [[nodiscard]] std::span<compute_type_t<T>> borrowed_gradients() const noexcept { return gradients_; }
  [[nodiscard]] std::size_t first_of(std::size_t number) const noexcept { return entries_[number].first; }

 private:
  struct listed_parameter {
    std::size_t first;
    parameter<T> listed;
  };
  std::span<T> values_;
  std::span<compute_type_t<T>> gradients_;
  std::size_t end_ = 0;
  std::deque<listed_parameter> entries_;
};

}  // namespace belay::inline BELAY_ABI
