// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A network whose table of tokens and whose head are one weight, cut into stages, of which the first and the last have
// a parameter of its name; and its training on any mesh.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/parallel/gathers.hpp"
#include "belay/train.hpp"
#include "unit/parallel/support/staged_network.hpp"

namespace tied {

using staged::hidden_view, staged::micro_batches, staged::rows, staged::token_view, staged::vocabulary, staged::width;
using weight_type = belay::parameter<float>;

inline belay::parameter_spec shared_weight() {
  return {.name = "shared.weight",
          .shape = {vocabulary, width},
          .first_values = belay::initial::normal(0.4),
          .uses = 2,
          .tied = belay::tied_over::stages};
}

struct table {
  weight_type* weight;
  struct residue {
    belay::view<float, 2> out;
    token_view tokens;
  };
  [[nodiscard]] static const char* name() { return "table"; }
  residue forward(auto& frame, token_view tokens) {
    const auto y = belay::keep<float>(frame, {tokens.size(), width});
    const hidden_view w = frame.read(*weight);
    frame.run([=] {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        for (std::size_t k = 0; k < width; ++k) y(i, k) = w(static_cast<std::size_t>(tokens[i]), k);
    });
    return {y, tokens};
  }
  void backward(auto& frame, residue&& r, hidden_view dy) {
    const belay::view<float, 2> dw = frame.add_to(*weight);
    frame.run([=, tokens = r.tokens] {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        for (std::size_t k = 0; k < width; ++k) dw(static_cast<std::size_t>(tokens[i]), k) += dy(i, k);
    });
  }
  void for_each_parameter(auto&& visit) { visit(*weight); }
};

struct head {
  weight_type* weight;
  struct residue {
    belay::view<float, 2> out;
    hidden_view x;
  };
  [[nodiscard]] static const char* name() { return "head"; }
  residue forward(auto& frame, hidden_view x) {
    const auto y = belay::keep<float>(frame, {x.extent(0), vocabulary});
    frame.product(y, x, transposed(frame.read(*weight)));
    return {y, x};
  }
  void backward(auto& frame, residue&& r, hidden_view dy, belay::view<float, 2> dx) {
    frame.product(frame.add_to(*weight), transposed(dy), r.x);
    frame.product(dx, dy, frame.read(*weight));
  }
  void for_each_parameter(auto&& visit) { visit(*weight); }
};

/// Part `index` of `count`.
class network {
 public:
  network(std::size_t index, std::size_t count, belay::parameter_spec shared = shared_weight()) {
    const bool first = index == 0, last = index + 1 == count;
    if (first || last) weight_.emplace(std::move(shared));
    if (first) table_ = {&*weight_};
    if (last) head_ = {&*weight_};
    const auto before = [&](std::size_t part) { return part * staged::layers / count; };
    for (std::size_t i = before(index); i < before(index + 1); ++i) layers_.emplace_back(i);
  }
  network(const network&) = delete;
  [[nodiscard]] bool has_embedding() const { return table_.weight != nullptr; }
  [[nodiscard]] bool has_head() const { return head_.weight != nullptr; }
  [[nodiscard]] table& first() { return table_; }
  [[nodiscard]] head& last() { return head_; }
  [[nodiscard]] std::deque<staged::layer>& layers() { return layers_; }
  void for_each_parameter(auto&& visit) {
    if (weight_ && has_embedding()) visit(*weight_);
    for (staged::layer& one : layers_) one.for_each_parameter(visit);
    if (weight_ && !has_embedding()) visit(*weight_);
  }

 private:
  std::optional<weight_type> weight_;
  table table_{};
  head head_{};
  std::deque<staged::layer> layers_;
};

/// The parts of a rank.
class rank_network {
 public:
  rank_network(const belay::schedule::dynamic_table& table, std::size_t rank) {
    for (std::size_t chunk = 0; chunk < table.chunks(); ++chunk) numbers_.push_back(table.stage(rank, chunk));
    for (const std::size_t number : numbers_) parts_.emplace_back(number, table.stages());
  }
  void for_each_parameter(auto&& visit) {
    for (network& part : parts_) part.for_each_parameter(visit);
  }
  void for_each_stage(auto&& visit) {
    for (std::size_t i = 0; i < parts_.size(); ++i) visit(numbers_[i], parts_[i]);
  }
  [[nodiscard]] std::deque<network>& parts() { return parts_; }

 private:
  std::vector<std::size_t> numbers_;
  std::deque<network> parts_;
};

/// How a mesh trains the network: pipelines of as many ranks as `table` has.
struct training {
  belay::schedule::dynamic_table table;
  int data = 1;
  int expert = 1;
  belay::store_options options = {.bucket_bytes = 64};
  belay::launch_options launched = {};
  std::size_t steps = 3;
  std::string checkpoints = {};  // a folder, or none
  belay::resume_from from = belay::resume_from::nothing;
  std::string exported = {};  // a folder for the weights, or none
};

/// The results of a training. Values are those of every stage that has a parameter of the name, one after the other.
struct trained {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<std::vector<float>>> values;
  std::mutex one_at_a_time;

  void keep(auto& store, rank_network& net) {
    net.for_each_parameter([&](auto& parameter) {
      const auto whole = store.read(parameter);
      if (store.rehearsed()) return;
      const std::lock_guard<std::mutex> alone(one_at_a_time);
      values[parameter.name()].emplace_back(whole.values().begin(), whole.values().end());
    });
  }
};

/// Trains with `Stage` of ZeRO; checks that ranks need what is planned.
template <int Stage>
void train(const training& how, trained& out) {
  const int ranks = static_cast<int>(how.table.ranks()) * how.data * how.expert;
  const auto body = [&](belay::rank& rank, auto& run) {
    belay::mesh mesh{rank, {.pipeline = static_cast<int>(how.table.ranks()), .data = how.data, .expert = how.expert}};
    const auto replica = static_cast<std::size_t>(mesh.replicas().rank());
    rank_network net(how.table, static_cast<std::size_t>(mesh.pipeline().rank()));
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{}, how.options};
    belay::adamw optimizer{store};
    belay::checkpoints saved{run, mesh, {.folder = how.checkpoints, .every = how.steps}};
    saved.add(store, optimizer);
    const auto resumed = saved.open(how.from);
    using whole_type = belay::gathering_network<network, decltype(store)>;
    std::deque<whole_type> whole;
    std::deque<belay::pipeline_stage<whole_type>> own;
    std::vector<belay::pipeline_stage<whole_type>*> pointers;
    for (network& part : net.parts()) pointers.push_back(&own.emplace_back(whole.emplace_back(part, store)));
    belay::pipeline pipeline{mesh, how.table, belay::boundary<float>({rows, width})};
    for (const std::size_t number : run.steps(resumed.step + how.steps, resumed.step)) {
      const staged::batch data(number + replica * 7);
      belay::step step{run.engine(), store, saved};
      pipeline.run(step, belay::stages_of_rank<belay::pipeline_stage<whole_type>>(pointers), data.inputs(),
                   data.loss());
      const auto replicas = static_cast<std::size_t>(how.data * how.expert);
      auto outcome = std::move(step).commit(mesh, belay::samples{micro_batches * rows * replicas});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](const belay::step_summary& end) {
        out.losses.push_back(end.mean_loss());
        out.norms.push_back(end.norm);
      });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
      static_cast<void>(saved.after(number));
    }
    saved.close();
    if (!how.exported.empty()) belay::export_parameters(mesh, net, how.exported);
    out.keep(store, net);
  };
  const belay::rehearsal_result planned = belay::rehearse(belay::host::world{ranks}, body, how.launched);
  belay::launch(
      belay::host::world{ranks},
      [&](belay::rank& rank, auto& run) {
        body(rank, run);
        if (run.rehearsing()) return;
        const auto& plan = planned.plan.ranks()[static_cast<std::size_t>(rank.number())];
        CHECK(run.meters()[belay::tier::device].peak_bytes() == plan.peak_bytes(belay::tier::device));
      },
      how.launched);
}

}  // namespace tied
