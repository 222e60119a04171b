// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A run with checkpoints, as a user would write it, on ranks that are threads: its parameters take more than one chunk
// of a file, and some are never trained.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/step.hpp"
#include "belay/train.hpp"
#include "unit/train/support/directory.hpp"

namespace checkpoint_bench {

using train_bench::directory;

inline std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void overwrite(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}
inline std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> out;
  for (const auto& each : std::filesystem::directory_iterator(path)) out.push_back(each.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

// Over a pointer: where nothing is optimized, a view is asked for its size at each element.
template <class T>
double sum(const T* values, std::size_t count) {
  double out = 0;
  for (std::size_t i = 0; i < count; ++i) out += static_cast<double>(static_cast<float>(values[i]));
  return out;
}

// A loss that is its input times the mean of its weights: what counts is that every weight has a gradient of its own.
template <class T>
struct layer {
  belay::parameter<T> wide{{"wide", {300, 1001}, belay::initial::normal(0.1)}};
  belay::parameter<T> narrow{{"narrow", {3}, belay::initial::constant(1), belay::weight_decay::no}};
  belay::parameter<T, belay::replicate, belay::frozen> base{{"base", {50, 7}, belay::initial::normal(1)}};

  void for_each_parameter(auto&& visit) { visit(wide), visit(narrow), visit(base); }

  struct residue {
    belay::view<float, 2> out;
    belay::view<const float, 2> x;
  };
  residue forward(auto& frame, belay::view<const float, 2> x) {
    auto y = frame.template keep<float>(x.shape());
    const auto first = frame.read(wide);
    const auto second = frame.read(narrow);
    frame.run([=] {
      const double mean = sum(first.data(), first.size()) + sum(second.data(), second.size());
      for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = x.data()[i] * static_cast<float>(mean / 1000);
    });
    return {y, x};
  }
  void backward(auto& frame, residue&& r, belay::view<const float, 2> dy, belay::view<float, 2> dx) {
    const belay::view<float, 2> first = frame.add_to(wide);
    const belay::view<float, 1> second = frame.add_to(narrow);
    frame.run([=, x = r.x] {
      const float slope = dy.data()[0] * x.data()[0];
      float* const wide_gradient = first.data();
      float* const narrow_gradient = second.data();
      for (std::size_t i = 0, n = first.size(); i < n; ++i) wide_gradient[i] += slope * static_cast<float>(i % 97) / 97;
      for (std::size_t i = 0, n = second.size(); i < n; ++i) narrow_gradient[i] += slope;
      for (std::size_t i = 0; i < dx.size(); ++i) dx.data()[i] = dy.data()[i];
    });
  }
};

struct cursor {
  std::size_t next = 0;
  [[nodiscard]] std::string save() const { return "next=" + std::to_string(next); }
  void load(std::string_view text) { next = std::strtoul(std::string(text.substr(5)).c_str(), nullptr, 10); }
};

// What the ranks had after one step: the loss, and all state that is kept of each element, by part and tensor.
using whole_state = std::map<std::string, std::vector<float>>;
struct record {
  std::vector<double> losses;               // by step, from the first of this run
  std::map<std::uint64_t, whole_state> at;  // by step
  belay::resumed_run from;
  std::size_t next_sample = 0;
  std::vector<std::string> problems;
  belay::checkpoint_costs costs;
};

struct settings {
  int ranks = 2;
  std::size_t steps = 6;
  belay::checkpoint_options saved;
  belay::resume_from from = belay::resume_from::newest;
  belay::zero_stage zero = belay::zero_stage::optimizer_state;
  belay::stream_choice streams;
  belay::optimizer_memory memory;  // of the optimizer's state
  std::string parameters;          // in a file of that folder
  std::function<void(int rank, std::size_t step)> before_commit = [](int, std::size_t) {};
};

inline constexpr std::size_t global_micro_batches = 12;

template <class T, class Files, class Calls>
void run_rank(const settings& with, record& out, std::mutex& lock, auto& rank, auto& run) {
  belay::mesh mesh{rank, {.data = rank.size()}};
  layer<T> net;
  using run_type = std::remove_reference_t<decltype(run)>;
  using store_type = belay::parameter_store<run_type, belay::precision<T>>;
  store_type store{run,
                   mesh,
                   net,
                   with.zero,
                   {.seed = 3,
                    .bucket_bytes = std::size_t{1} << 16U,
                    .parameters = with.parameters.empty() ? belay::tier::device : belay::tier::file,
                    .files = {.folder = with.parameters}}};
  belay::gathers<layer<T>, store_type> whole{net, store};
  belay::adamw<T, typename store_type::group_type, typename store_type::kit_type, Calls> optimizer{
      store, {}, with.memory};
  cursor data;
  belay::checkpoints<run_type, Files> saved{run, mesh, with.saved};
  saved.add(store, optimizer);
  saved.add("data", data);
  const belay::resumed_run from = saved.open(with.from);
  const auto note = [&](std::uint64_t step) {
    if (run.rehearsing()) return;
    const std::lock_guard held(lock);
    whole_state& state = out.at[step];
    const auto put = [&](std::string_view part, const auto& parameter, std::size_t first, auto values) {
      std::vector<float>& all = state[std::string(part) + " " + parameter.name()];
      all.resize(parameter.global_size());
      for (std::size_t i = 0; i < values.size(); ++i) all[first + i] = static_cast<float>(values[i]);
    };
    net.for_each_parameter([&](auto& parameter) {
      parameter.each_held([&](std::size_t first, auto values) { put("value", parameter, first, values); });
    });
    optimizer.each_state([&](std::string_view part, const auto& range, auto state_of) {
      put(part, store.buckets().parameter(range.parameter), range.offset, state_of);
    });
  };
  if (!run.rehearsing()) note(from.step);
  const auto own = belay::even_part(global_micro_batches, static_cast<std::size_t>(rank.size()),
                                    static_cast<std::size_t>(rank.number()));
  float x[1] = {0}, target[1] = {0};
  const belay::view<const float, 2> inputs{x, {1, 1}}, targets{target, {1, 1}};
  for (const std::size_t number : run.steps(with.steps, from.step)) {
    belay::step step{run.engine(), store, saved};
    step.micro_batches(own.count);
    for (std::size_t m = 0; m < own.count; ++m) {
      const std::size_t sample = data.next + own.first + m;
      run.engine().run_on_host([&] { x[0] = static_cast<float>(sample % 29) / 29 + 0.1F; });
      auto hidden = belay::forward(step.micro_batch(m), whole, belay::constant(inputs));
      auto [loss, gradient] = belay::squared_error(step.micro_batch(m), hidden.out(), targets);
      std::move(hidden).backward(gradient);
    }
    if (!run.rehearsing()) with.before_commit(rank.number(), number);
    auto outcome = std::move(step).commit(mesh, belay::samples{global_micro_batches});
    auto* const ok = belay::committed(outcome);
    if (ok == nullptr) continue;
    run.report(*ok, [&](double mean) { out.losses.push_back(mean); });
    optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
    run.engine().compute().synchronize();
    data.next += global_micro_batches;
    note(number);
    const bool stops = saved.after(number);
    if (rank.number() == 0)
      if (const auto problem = saved.take_problem()) out.problems.emplace_back(problem->what());
    if (stops) break;
  }
  saved.close();
  if (rank.number() != 0 || run.rehearsing()) return;
  out.from = from;
  out.next_sample = data.next;
  out.costs = saved.costs();
}

template <class T = float, class Files = belay::posix_files, class Calls = belay::system_tier_file_calls>
record train(const settings& with) {
  record out;
  std::mutex lock;
  const auto body = [&](auto& rank, auto& run) { run_rank<T, Files, Calls>(with, out, lock, rank, run); };
  belay::launch(belay::host::world{with.ranks}, body, {.streams = with.streams});
  return out;
}

// The largest difference between two states, relative to the largest value; 1e30 where they are not of one kind.
inline double apart(const whole_state& a, const whole_state& b) {
  double worst = 0;
  if (a.size() != b.size()) return 1e30;
  for (const auto& [name, values] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.size() != values.size()) return 1e30;
    double largest = 0, difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(values[i])));
      difference = std::max(difference, std::abs(static_cast<double>(values[i]) - found->second[i]));
    }
    if (difference > 0) worst = std::max(worst, difference / largest);
  }
  return worst;
}

}  // namespace checkpoint_bench
