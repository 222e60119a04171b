// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The parts of a Mixtral that one rank holds: those stages of a pipeline that are its chunks. Together they are a
// model, which has parameters and perhaps the head.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "model/learning.hpp"
#include "model/mixtral.hpp"

namespace model {

/// It cannot be moved, as its parts.
template <class T, class Exchange, class Parts = trains_all>
class mixtral_parts {
 public:
  using part_type = mixtral<T, Exchange, Parts>;

  /// `local` are the experts held of every layer; `exchange` outlives the model.
  mixtral_parts(const mixtral_config& config, std::span<const model_part> parts, expert_range local,
                Exchange& exchange) {
    for (const model_part& each : parts) parts_.emplace_back(config, each, local, exchange);
  }
  mixtral_parts(const mixtral_parts&) = delete;
  mixtral_parts& operator=(const mixtral_parts&) = delete;

  [[nodiscard]] std::deque<part_type>& parts() noexcept { return parts_; }

  [[nodiscard]] bool has_head() const {
    return std::any_of(parts_.begin(), parts_.end(), [](const part_type& part) { return part.has_head(); });
  }
  /// The numbers of all layers in the whole model, part by part.
  [[nodiscard]] std::vector<std::size_t> layer_numbers() {
    std::vector<std::size_t> out;
    for (part_type& part : parts_)
      for (const auto& layer : part.layers()) out.push_back(layer.index());
    return out;
  }

  /// Numbers of the table of positions, which all layers read; `fill` writes one, and kernels read it from `use` on.
  [[nodiscard]] rotary<T>& positions() { return parts_.front().positions(); }
  void use_positions(const typename rotary<T>::number* table) {
    for (part_type& part : parts_) part.positions().use(table);
  }

  /// As those of a part.
  void recompute_attention(belay::recomputes how) {
    for (part_type& part : parts_) part.recompute_attention(how);
  }
  void set_balance_scale(double scale) {
    for (part_type& part : parts_) part.set_balance_scale(scale);
  }
  template <class Visitor>
  void for_each_stage(Visitor&& visit) {
    for (part_type& part : parts_) visit(part.part().index, part);
  }
  template <class Visitor>
  void for_each_parameter(Visitor&& visit) {
    for (part_type& part : parts_) part.for_each_parameter(visit);
  }

 private:
  std::deque<part_type> parts_;
};

}  // namespace model
