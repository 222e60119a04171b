// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// optimizer_shards [ranks] [rounds] [millions of parameters]
//
// AdamW on the shards of a ZeRO-3 store beside the memory: every rank, a process on a core of its own, updates its part
// of all parameters, in turn with kernels that read and write the same streams and only add (values and both moments
// are read and written, gradients read: 28 bytes a parameter in fp32). Those are written by hand, with lines asked for
// ahead or not, and with stores through or around the caches; the fastest is the limit. Gradients were written and
// summed just before, of all of them. For bench/optimizer.py: prints the medians of AdamW and of the limit in
// nanoseconds a parameter of all, and the median of their ratios.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "belay/belay.hpp"
#include "belay/kernel/non_temporal.hpp"
#include "support/matrices.hpp"

namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// The same streams, with the least arithmetic. Arrays begin at different offsets of a page, as a trainer would choose.
class streams {
 public:
  struct kernel {
    const char* name;
    void (streams::*run)() noexcept;
  };
  static constexpr std::array<kernel, 5> kernels() noexcept {
    return {{{"plain", &streams::add<0, store::through>},
             {"16 lines ahead", &streams::add<16, store::through>},
             {"32 lines ahead", &streams::add<32, store::through>},
             {"64 lines ahead", &streams::add<64, store::through>},
             {"32 lines ahead, around the caches", &streams::add<32, store::around>}}};
  }

  explicit streams(std::size_t count) : count_(count), memory_(4 * (count + apart) * sizeof(float)) {
    std::fill_n(part(0), 4 * (count + apart), 1e-3F);
  }
  // As a backward and a commit do: writes the gradients and sums their squares.
  double freshen() noexcept {
    float* const gradient = part(3);
    for (std::size_t i = 0; i < count_; ++i) gradient[i] = 1e-3F * static_cast<float>(i % 7);
    std::array<float, 16> sums{};
    for (std::size_t i = 0; i < count_; i += sums.size())
      for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += gradient[i + j] * gradient[i + j];
    return std::accumulate(sums.begin(), sums.end(), 0.0);
  }

 private:
  enum class store { through, around };
  static constexpr std::size_t apart = 272, line = 16;  // floats
  using half_line [[gnu::vector_size(32)]] = float;

  template <store How>
  static void put(float* to, const half_line& value) noexcept {
#if defined(__AVX__) && !defined(__clang__)
    if constexpr (How == store::around) return __builtin_ia32_movntps256(to, value);
#elif defined(__clang__)
    if constexpr (How == store::around) return __builtin_nontemporal_store(value, reinterpret_cast<half_line*>(to));
#endif
    *reinterpret_cast<half_line*>(to) = value;
  }
  // All at once, as an update does; `count_` is a multiple of a line.
  template <std::size_t Ahead, store How>
  void add() noexcept {
    float* const targets[] = {part(0), part(1), part(2)};
    const float* const gradient = part(3);
    for (std::size_t i = 0; i < count_; i += line) {
      if constexpr (Ahead > 0) {
        for (float* target : targets) belay::kernel::prefetch(target, i + Ahead * line);
        belay::kernel::prefetch(gradient, i + Ahead * line);
      }
      for (std::size_t half = i; half < i + line; half += line / 2) {
        const half_line& added = *reinterpret_cast<const half_line*>(gradient + half);
        for (float* target : targets) put<How>(target + half, *reinterpret_cast<half_line*>(target + half) + added);
      }
    }
    if constexpr (How == store::around) belay::kernel::finish_non_temporal();
  }

  [[nodiscard]] float* part(std::size_t number) noexcept {
    return reinterpret_cast<float*>(memory_.data()) + number * (count_ + apart);
  }
  std::size_t count_;
  belay::host_pages memory_;
};

std::size_t number_of(int argc, char** argv, int which, std::size_t otherwise) {
  return argc > which ? std::strtoul(argv[which], nullptr, 10) : otherwise;
}

}  // namespace

int main(int argc, char** argv) try {
  const auto ranks = static_cast<int>(number_of(argc, argv, 1, 1));
  const std::size_t rounds = number_of(argc, argv, 2, 11), parameters = number_of(argc, argv, 3, 64) << 20;
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    bench::network net(parameters);
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
    belay::adamw optimizer{store};
    std::optional<streams> limit;
    if (!run.rehearsing()) limit.emplace(parameters / static_cast<std::size_t>(ranks));
    const float one = 0.5F;
    const auto& all = mesh.control();
    const auto seconds_of = [&](auto&& work) {
      all.barrier();
      const auto begin = std::chrono::steady_clock::now();
      work();
      std::array<double, 1> took{std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
      all.all_reduce(std::span<double>(took), belay::maximum);  // the slower of them
      return took[0];
    };
    constexpr auto kernels = streams::kernels();
    std::vector<double> updates;
    std::array<std::vector<double>, kernels.size()> limits;
    double checked = 0;
    for (auto number : run.steps(rounds + 1)) {
      belay::step step{run.engine(), store};
      net.write_gradients(step, one);
      auto outcome = std::move(step).commit(mesh, belay::samples{1});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      const auto update = [&] {
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-3, .clip = 1.0});
        run.engine().compute().synchronize();
      };
      if (run.rehearsing()) {
        update();
        continue;
      }
      const double took = seconds_of(update);
      if (number > 1) updates.push_back(took);
      for (std::size_t i = 0; i < kernels.size(); ++i) {
        const std::size_t which = (i + number) % kernels.size();
        checked += limit->freshen();
        const double least = seconds_of([&] { ((*limit).*(kernels[which].run))(); });
        if (number > 1) limits[which].push_back(least);  // the first round is warm
      }
    }
    if (run.rehearsing() || rank.number() != 0) return;
    if (!(checked > 0)) throw belay::error("the gradients are gone", belay::where::current());
    std::size_t fastest = 0;
    for (std::size_t i = 1; i < kernels.size(); ++i)
      if (median(limits[i]) < median(limits[fastest])) fastest = i;
    std::vector<double> ratios;
    for (std::size_t i = 0; i < updates.size(); ++i) ratios.push_back(limits[fastest][i] / updates[i]);
    const double each = 1e9 / static_cast<double>(parameters);
    std::printf(
        "{\"ranks\": %d, \"parameters\": %zu, \"adamw_ns\": %.4f, \"limit_ns\": %.4f, \"ratio\": %.4f, "
        "\"limit\": \"%s\"}\n",
        ranks, parameters, each * median(updates), each * median(limits[fastest]), median(ratios),
        kernels[fastest].name);
    std::fflush(stdout);
  };
  belay::launch(belay::host::processes{ranks, {.pin = belay::host::pinning::one_core_each}}, body);
  return 0;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "optimizer_shards: %s\n", problem.what());
  return 1;
}
