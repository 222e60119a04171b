// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Cycles of training and evaluation between which the optimizer's state and the gradients leave the device, by the
// library's `phase_residency` or in one of the ways in which trainers have done it wrong; and what was seen of them.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/train.hpp"
#include "unit/train/support/network.hpp"

namespace phase_cycles {

using namespace network_bench;
using belay::phase;
using belay::tier;

struct hidden_network {
  linear first, second;
  explicit hidden_network(std::size_t hidden)
      : first{{"first.weight", {hidden, columns}}}, second{{"second.weight", {outputs, hidden}}} {}
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

// What moves the optimizer's state and the gradients. The right one is the library's; `forgets` uses it too, and what
// it brings back for a checkpoint it does not put away again.
enum class policy { right, forgets, fresh_buffer, discards_the_copy, copies_all_first };

// The other wrong ones, with the same interface.
template <class Run>
class wrong_residency {
 public:
  wrong_residency(Run& run, policy how) : run_(&run), how_(how) {
    for (const char* purpose : {"gradients", "optimizer state"})
      for (const auto& each : run.leases_of(tier::device, purpose)) ranges_.push_back(each.memory);
    for (const std::span<std::byte> each : ranges_) bytes_ += belay::leased_size(each.size());
    if (how == policy::copies_all_first) {
      kept_ = run.template lease<std::byte>(tier::pinned, std::bit_ceil(bytes_), "out of phase");
      run.vacate(tier::pinned, kept_);
    }
  }
  std::size_t offload(belay::where) {
    if (how_ == policy::discards_the_copy) return bytes_;  // it says so
    if (how_ == policy::fresh_buffer)
      kept_ = run_->template lease<std::byte>(tier::pinned, std::bit_ceil(bytes_), "out of phase");
    else
      run_->occupy(tier::pinned, kept_);
    most_in_both_ = 2 * bytes_;
    std::size_t done = 0;
    for (const std::span<std::byte> each : ranges_) {
      if (!run_->rehearsing()) std::memcpy(kept_.data() + done, each.data(), each.size());
      done += each.size();
      run_->vacate(tier::device, each);
    }
    return bytes_;
  }
  std::size_t restore(belay::where) {
    if (how_ == policy::discards_the_copy) return bytes_;
    std::size_t done = 0;
    for (const std::span<std::byte> each : ranges_) {
      run_->occupy(tier::device, each);
      if (!run_->rehearsing()) std::memcpy(each.data(), kept_.data() + done, each.size());
      done += each.size();
    }
    if (how_ == policy::copies_all_first) run_->vacate(tier::pinned, kept_);
    return bytes_;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] tier lower() const { return tier::pinned; }
  [[nodiscard]] std::size_t most_in_both() const { return most_in_both_; }

 private:
  Run* run_;
  policy how_;
  std::vector<std::span<std::byte>> ranges_;
  std::span<std::byte> kept_;
  std::size_t bytes_ = 0, most_in_both_ = 0;
};

struct found {
  std::vector<double> losses;
  std::size_t bytes = 0, most_in_both = 0, growth = 0;
  bool leaves = true;       // the device's live bytes are less by what is moved, and pinned ones are as many more
  bool flat = true;         // live bytes of all tiers are those of the first cycle
  bool named = true;        // the transition says what was moved
  bool checkpoints = true;  // what is read in the middle is right, and residency is as before
  bool as_planned = true;
};

// The state as a checkpoint reads it.
inline std::vector<float> state_of(const auto& optimizer) {
  std::vector<float> all;
  optimizer.each_state(
      [&](const char*, const auto&, std::span<float> values) { all.insert(all.end(), values.begin(), values.end()); });
  return all;
}

// What is leased, row by row of the plan, is what the meters say.
template <class Run>
void check_rows(const Run& run) {
  std::array<std::size_t, belay::tier_count> sums{};
  run.each_live(
      [&](belay::tier in, std::string_view, std::size_t bytes) { sums[static_cast<std::size_t>(in)] += bytes; });
  for (std::size_t t = 0; t < sums.size(); ++t)
    CHECK(sums[t] == run.meters()[static_cast<belay::tier>(t)].live_bytes());
}

template <class Mesh, class Run>
double step_once(const Mesh& mesh, Run& run, auto& net, auto& store, auto& optimizer, std::size_t number) {
  const data batch{number, 0};
  belay::step step{run.engine(), store};
  auto h = belay::forward(step, net.first, belay::constant(batch.inputs()));
  auto y = belay::forward(step, net.second, h.out());
  auto [loss, grad] = belay::squared_error(step, y.out(), batch.targets());
  check_rows(run);
  grad = std::move(y).backward(grad);
  std::move(h).backward(grad);
  auto outcome = std::move(step).commit(mesh, belay::samples{rows});
  double mean = 0;
  if (auto* ok = belay::committed(outcome)) {
    mean = ok->summary().mean_loss();
    optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
  }
  return mean;
}

// `steps` steps with `cycles` of train -> eval -> train after each; only rank 0 looks. In tier file, in `folder`.
inline found run_phases(policy how, tier lower, std::size_t hidden, std::size_t steps, std::size_t cycles,
                        const std::string& folder = "") {
  found out;
  const bool moves = how == policy::right || how == policy::forgets;
  belay::launch(belay::host::world{2}, [&](auto& rank, auto& run) {
    using run_type = std::remove_reference_t<decltype(run)>;
    belay::mesh mesh{rank, {.data = rank.size()}};
    hidden_network net(hidden);
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    belay::phase_residency residency{run, belay::residency_memory{moves ? lower : tier::device, {folder}}, store};
    wrong_residency<run_type> wrong{run, how};
    belay::phase_switch phases{run, mesh, store};
    moves ? phases.moves(residency) : phases.moves(wrong);
    auto training = phases.begin();
    const bool looks = !run.rehearsing() && rank.number() == 0;
    const auto live = [&](tier of) { return run.meters()[of].live_bytes(); };
    std::vector<std::size_t> first;
    std::size_t resident = 0, cycle = 0;
    const std::size_t moved = moves ? residency.bytes() : wrong.bytes();
    const std::size_t taken = lower == tier::file ? 0 : moved;  // a file has its bytes for as long as the run
    for (auto number : run.steps(steps)) {
      const double loss = step_once(mesh, run, net, store, optimizer, number);
      if (looks) out.losses.push_back(loss);
      for (std::size_t i = 0; i < (run.rehearsing() ? steps * cycles : cycles); ++i) {
        const std::size_t device = live(tier::device), below = live(lower);
        const std::vector<float> state = i == 0 && looks ? state_of(optimizer) : std::vector<float>{};
        auto evaluating = phases.to_eval(std::move(training));
        check_rows(run);
        if (looks) {
          const belay::transition& left = phases.last();
          out.leaves = out.leaves && device - live(tier::device) == moved && live(lower) - below == taken;
          out.named = out.named && left.given_back.size() == 2 &&
                      left.given_back[1].what == "gradients and optimizer state" && left.given_back[1].bytes == moved;
          if (i == 0 && moves) {
            {
              std::optional<belay::residency_hold> here;
              how == policy::right ? void(here.emplace(store.hold_state())) : void(residency.restore());
              out.checkpoints = out.checkpoints && state_of(optimizer) == state && live(tier::device) == device;
            }
            out.checkpoints = out.checkpoints && (how != policy::right || state_of(optimizer) == state);
            out.checkpoints = out.checkpoints && residency.away() && device - live(tier::device) == moved;
          }
        }
        training = phases.to_train(std::move(evaluating));
        if (!looks) continue;
        const std::vector<std::size_t> now{live(tier::device), live(tier::pinned), live(tier::host), live(tier::file)};
        if (first.empty()) first = now;
        out.flat = out.flat && now == first;
        for (const std::ptrdiff_t grown : phases.last().grown) out.flat = out.flat && grown == 0;
        out.named = out.named && phases.last().taken.size() == 1 && phases.last().taken[0].bytes == moved;
        if (++cycle == 100) resident = belay::resident_memory();
      }
    }
    if (!looks) return;
    out.bytes = moved;
    out.most_in_both = moves ? residency.most_in_both() : wrong.most_in_both();
    const std::size_t end = belay::resident_memory();
    out.growth = resident != 0 && end > resident ? end - resident : 0;
    for (const tier of : {tier::device, tier::pinned, tier::host, tier::file})
      out.as_planned = out.as_planned && run.meters()[of].peak_bytes() == run.planned().peak_bytes(of);
  });
  return out;
}

}  // namespace phase_cycles
