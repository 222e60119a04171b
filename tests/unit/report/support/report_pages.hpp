// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Samples of a run that never was: for tests of its page.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/report/page.hpp"

namespace report_test {

inline constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20U;

/// Losses that fall, one slow and large step, one replay, and experts that are balanced but for the first.
struct made_run {
  belay::report_subject subject;
  std::string text = "To be, or not to be <that>";

  made_run(std::uint64_t steps, std::size_t ranks, std::size_t layers, std::size_t experts)
      : live{512 * mebibyte, 256 * mebibyte, 0, 64 * mebibyte}, tokens(layers * experts), waiting(ranks) {
    subject.title = "a made run";
    subject.steps = steps;
    subject.ranks = ranks, subject.layers = layers, subject.experts = experts;
    const std::uint64_t bytes[] = {512 * mebibyte, 256 * mebibyte, 768 * mebibyte, 64 * mebibyte};
    const char* const rows[][2] = {
        {"device", "parameters"}, {"device", "optimizer"}, {"device", "activations"}, {"host", "batch"}};
    for (std::size_t i = 0; i < 4; ++i)
      subject.memory.push_back({rows[i][0], rows[i][1], bytes[i], bytes[i] / 2, bytes[i], bytes[i] * ranks});
    for (std::size_t stage = 0; stage < 2; ++stage) {
      for (std::size_t m = 0; m < 4; ++m) {
        using pass_kind = belay::report_action::pass_kind;
        const double at = static_cast<double>(m), back = 5 + 2 * at + static_cast<double>(1 - stage);
        planned.push_back(
            {stage, m, pass_kind::forward, at + static_cast<double>(stage), at + static_cast<double>(stage + 1)});
        planned.push_back({stage, m, pass_kind::backward, back, back + 2});
        const double begin = 100 + 1.1 * at + static_cast<double>(stage);
        executed.push_back({stage, m, pass_kind::forward, begin, begin + 1});
        executed.push_back({stage, m, pass_kind::backward, 100.5 + back, 102.4 + back});
      }
    }
    for (std::uint64_t i = 0; i < 24; ++i) {
      const std::uint64_t more = 50 * (i < 12 ? i : 23 - i);
      moments.push_back({(896 + more) * mebibyte, i < 12 ? 3 * i : 3 * (23 - i)});
      for (const std::uint64_t here : {std::uint64_t{512}, std::uint64_t{256}, 128 + more, std::uint64_t{64}})
        moment_live.push_back(here * mebibyte);
    }
    subject.setup = {{"mesh", "pp=2,ep=2"}, {"lr", "0.001"}};
  }

  /// Valid until the next one.
  belay::report_sample at(std::uint64_t step) {
    const double t = static_cast<double>(step);
    const bool slow = step == subject.steps / 2;
    tiers[0] = {896 * mebibyte, (slow || step > subject.steps / 2 ? 1536 : 1280) * mebibyte};
    tiers[1] = {64 * mebibyte, 64 * mebibyte};
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = 64 + (i % 7) * (step % 3) + (i == 0 ? step % 400 : 0);
    for (std::size_t i = 0; i < waiting.size(); ++i)
      waiting[i] = 0.3 - 0.2 * static_cast<double>(i) / static_cast<double>(waiting.size());
    belay::report_sample out;
    out.step = step;
    out.loss = 5.5 / (1 + t / 300) + 0.1 * std::sin(t);
    out.learning_rate = 1e-3;
    out.tokens_per_s = slow ? 2000 : 12000 + 300 * std::sin(3 * t);
    out.grad_norm = 1 + 0.5 * std::cos(t) + (slow ? 20 : 0);
    out.bubble = 0.2 + 0.02 * std::sin(t), out.bubble_predicted = 0.18;
    out.replays = slow ? 1 : 0;
    out.tiers = tiers, out.live = live, out.waiting = waiting;
    out.expert_tokens = {tokens.data(), {subject.layers, subject.experts}};
    if (subject.ranks == 1) return out;
    out.executed = executed, out.planned = planned, out.moments = moments;
    out.moment_live = moment_live;
    out.flops_utilization = 0.4 + 0.02 * std::sin(t);
    waits[0] = {"all_reduce", 24, waiting.size() - 1, 17, 1.25, waiting};
    waits[1] = {"all_gather_v", 1, 0, 1, 0.002, short_waits};
    out.waits = waits, out.waits_step = step - 1;
    return out;
  }

  std::vector<std::uint64_t> live, tokens, moment_live;
  std::vector<double> waiting;
  std::vector<double> short_waits = std::vector<double>(waiting.size(), 0.0012);
  belay::report_wait waits[2];
  belay::report_tier tiers[2];
  std::vector<belay::report_action> executed, planned;
  std::vector<belay::report_moment> moments;
};

}  // namespace report_test
