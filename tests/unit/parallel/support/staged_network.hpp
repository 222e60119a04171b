// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A network that can be cut into stages: a table of tokens, some layers, and a head; and the same trained by a loop.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/parallel/pipeline.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/step.hpp"
#include "belay/train.hpp"

namespace staged {

inline constexpr std::size_t rows = 3, width = 5, vocabulary = 7, layers = 6, micro_batches = 4;
using hidden_view = belay::view<const float, 2>;
using token_view = belay::view<const std::int32_t, 1>;

struct table {
  belay::parameter<float> weight{"table.weight", {vocabulary, width}};
  struct residue {
    belay::view<float, 2> out;
    token_view tokens;
  };
  [[nodiscard]] static const char* name() { return "table"; }
  residue forward(auto& frame, token_view tokens) {
    const auto y = belay::keep<float>(frame, {tokens.size(), width});
    const hidden_view w = frame.read(weight);
    frame.run([=] {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        for (std::size_t k = 0; k < width; ++k) y(i, k) = w(static_cast<std::size_t>(tokens[i]), k);
    });
    return {y, tokens};
  }
  void backward(auto& frame, residue&& r, hidden_view dy) {
    const belay::view<float, 2> dw = frame.add_to(weight);
    frame.run([=, tokens = r.tokens] {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        for (std::size_t k = 0; k < width; ++k) dw(static_cast<std::size_t>(tokens[i]), k) += dy(i, k);
    });
  }
  void for_each_parameter(auto&& visit) { visit(weight); }
};

/// y = scale * x + x * x / 8, with one scale a column.
struct layer {
  explicit layer(std::size_t number)
      : number_(number), scale_({"layer" + std::to_string(number) + ".scale", {width}, belay::initial::constant(1)}) {}
  struct residue {
    belay::view<float, 2> out;
    hidden_view x;
    belay::view<float, 2> squares;
  };
  [[nodiscard]] static const char* name() { return "layer"; }
  [[nodiscard]] std::size_t index() const { return number_; }
  residue forward(auto& frame, hidden_view x) {
    const auto y = belay::keep<float>(frame, x.shape()), squares = belay::keep<float>(frame, x.shape());
    const auto w = frame.read(scale_);
    frame.run([=] {
      for (std::size_t i = 0; i < x.size(); ++i) {
        squares.data()[i] = x.data()[i] * x.data()[i] / 8;
        y.data()[i] = w.data()[i % width] * x.data()[i] + squares.data()[i];
      }
    });
    return {y, x, squares};
  }
  void backward(auto& frame, residue&& r, hidden_view dy, belay::view<float, 2> dx) {
    const auto w = frame.read(scale_);
    frame.each(r.x.size(), derivative{r.x.data(), dy.data(), w.data(), dx.data()});
    frame.each_into(
        frame.add_to(scale_), width,
        [](float* dw, hidden_view x, hidden_view dout) {
          return column_sum{x.data(), dout.data(), dw, x.extent(0)};
        },
        r.x, dy);
  }
  void for_each_parameter(auto&& visit) { visit(scale_); }

 private:
  struct derivative {
    const float *x, *dy, *w;
    float* dx;
    BELAY_HD void operator()(std::size_t i) const { dx[i] = dy[i] * (w[i % width] + x[i] / 4); }
  };
  struct column_sum {
    const float *x, *dy;
    float* dw;
    std::size_t count;
    BELAY_HD void operator()(std::size_t k) const {
      for (std::size_t i = 0; i < count; ++i) dw[k] += dy[i * width + k] * x[i * width + k];
    }
  };

  std::size_t number_;
  belay::parameter<float> scale_;
};

struct head {
  belay::parameter<float> weight{"head.weight", {vocabulary, width}};
  struct residue {
    belay::view<float, 2> out;
    hidden_view x;
  };
  [[nodiscard]] static const char* name() { return "head"; }
  residue forward(auto& frame, hidden_view x) {
    const auto y = belay::keep<float>(frame, {x.extent(0), vocabulary});
    frame.product(y, x, transposed(frame.read(weight)));
    return {y, x};
  }
  void backward(auto& frame, residue&& r, hidden_view dy, belay::view<float, 2> dx) {
    frame.product(frame.add_to(weight), transposed(dy), r.x);
    frame.product(dx, dy, frame.read(weight));
  }
  void for_each_parameter(auto&& visit) { visit(weight); }
};

/// Part `index` of `count`: the first has the table, the last the head. Where layers do not divide, the first parts
/// have one more.
class network {
 public:
  network(std::size_t index, std::size_t count) {
    if (index == 0) table_.emplace();
    const auto before = [&](std::size_t part) {
      return part * (staged::layers / count) + std::min(part, staged::layers % count);
    };
    for (std::size_t i = before(index); i < before(index + 1); ++i) layers_.emplace_back(i);
    if (index + 1 == count) head_.emplace();
  }
  [[nodiscard]] bool has_embedding() const { return table_.has_value(); }
  [[nodiscard]] bool has_head() const { return head_.has_value(); }
  [[nodiscard]] table& first() { return *table_; }
  [[nodiscard]] head& last() { return *head_; }
  [[nodiscard]] std::deque<layer>& layers() { return layers_; }
  void for_each_parameter(auto&& visit) {
    if (table_) visit(table_->weight);
    for (layer& one : layers_) one.for_each_parameter(visit);
    if (head_) visit(head_->weight);
  }

 private:
  std::optional<table> table_;
  std::deque<layer> layers_;
  std::optional<head> head_;
};

/// The tokens and targets of a step, and the weight of each micro-batch in the objective.
struct batch {
  std::int32_t tokens[micro_batches * rows] = {}, targets[micro_batches * rows] = {};
  explicit batch(std::size_t step) {
    for (std::size_t i = 0; i < micro_batches * rows; ++i) {
      tokens[i] = static_cast<std::int32_t>((step * 5 + i * 3) % vocabulary);
      targets[i] = static_cast<std::int32_t>((step * 2 + i * i) % vocabulary);
    }
  }
  [[nodiscard]] belay::view<const std::int32_t, 2> inputs() const { return {tokens, {micro_batches, rows}}; }
  [[nodiscard]] belay::view<const std::int32_t, 1> targets_of(std::size_t m) const {
    return {targets + m * rows, {rows}};
  }
  [[nodiscard]] static double weight(std::size_t m) { return 0.5 + static_cast<double>(m); }
  // The loss of a micro-batch: the same for the loop and for the pipeline.
  [[nodiscard]] auto loss() const {
    return [this](const auto& scope, hidden_view logits) {
      return belay::cross_entropy(scope, logits, targets_of(scope.micro_batch()), weight(scope.micro_batch()));
    };
  }
};

/// The results of a training: by step, and the parameters by name.
struct trained {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> values;
  std::mutex one_at_a_time;

  void keep(network& part) {
    const std::lock_guard<std::mutex> alone(one_at_a_time);
    part.for_each_parameter([&](auto& parameter) {
      const auto flat = parameter.values();
      values[std::string(parameter.name())].assign(flat.data(), flat.data() + flat.size());
    });
  }
  [[nodiscard]] bool operator==(const trained& other) const {
    return losses == other.losses && norms == other.norms && values == other.values;
  }
};

// The runs of micro-batches of a rank, for which some ask its run too.
template <class MakeRunner, class Run>
auto runner_of(const MakeRunner& made_of, belay::mesh& mesh, network& net, Run& run) {
  if constexpr (std::is_invocable_v<const MakeRunner&, belay::mesh&, network&, Run&>)
    return made_of(mesh, net, run);
  else
    return made_of(mesh, net);
}

/// Trains for `steps` steps on `stages` stages. `micro_batches_of(step, net, data)` runs the micro-batches.
template <class MakeRunner>
auto training_body(std::size_t steps, trained& out, MakeRunner make_runner) {
  return [steps, &out, make_runner](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.pipeline = rank.size()}};
    network net(static_cast<std::size_t>(rank.number()), static_cast<std::size_t>(rank.size()));
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    auto runner = runner_of(make_runner, mesh, net, run);
    for (auto number : run.steps(steps)) {
      const batch data(number);
      belay::step step{run.engine(), store};
      runner(step, data);
      auto outcome = std::move(step).commit(mesh, belay::target_tokens{micro_batches * rows});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](const belay::step_summary& end) {
          out.losses.push_back(end.mean_loss());
          out.norms.push_back(end.norm);
        });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
      }
    }
    if (!run.rehearsing()) out.keep(net);
  };
}

/// As a trainer without a pipeline would write it.
inline void train_by_loop(std::size_t steps, trained& out) {
  const auto make_runner = [](auto&, network& net) {
    return [&net](const auto& step, const batch& data) {
      step.micro_batches(micro_batches);
      for (std::size_t m = 0; m < micro_batches; ++m) {
        const auto scope = step.micro_batch(m);
        using engine = std::remove_reference_t<decltype(step.engine())>;
        auto embedded = belay::forward(scope, net.first(), data.inputs()[m]);
        belay::handle_store<belay::saved<engine, layer, hidden_view>> handles{layers};
        hidden_view x = embedded.out();
        for (std::size_t i = 0; i < layers; ++i) {
          handles.keep(i, belay::forward(scope, net.layers()[i], x));
          x = handles.at(i).out();
        }
        auto logits = belay::forward(scope, net.last(), x);
        auto [loss, top] = data.loss()(scope, logits.out());
        auto grad = std::move(logits).backward(top);
        for (std::size_t i = layers; i-- > 0;) grad = handles.take(i).backward(grad);
        std::move(embedded).backward(grad);
      }
    };
  };
  belay::launch(belay::host::world{1}, training_body(steps, out, make_runner));
}

}  // namespace staged
