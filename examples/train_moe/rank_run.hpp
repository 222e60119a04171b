// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank's run without the type of its engine, for what a session does around its steps: that is compiled once, for all
// trainers.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

#include "belay/core/function_ref.hpp"
#include "belay/core/span_log.hpp"
#include "belay/device/tier.hpp"
#include "belay/step/call_spans.hpp"
#include "belay/step/commit.hpp"

namespace train_moe {

class rank_run {
 public:
  rank_run() = default;
  rank_run(const rank_run&) = delete;
  rank_run& operator=(const rank_run&) = delete;

  [[nodiscard]] virtual bool rehearsing() const = 0;
  /// Calls `train(number)` with the number of each step after `done`, up to `count`, until it returns false; a step
  /// that must be replayed comes again.
  virtual void each_step(std::size_t count, std::size_t done, belay::function_ref<bool(std::size_t)> train) = 0;
  [[nodiscard]] virtual belay::end_of_step last_end() const = 0;

  /// Memory of tier host for as long as the run, as of `belay::run_of::lease`; `lease_bytes` of `bytes_of(rank)` bytes.
  [[nodiscard]] virtual std::span<double> lease_numbers(std::size_t count, const char* purpose) = 0;
  [[nodiscard]] virtual std::span<char> lease_text(std::size_t count, const char* purpose) = 0;
  [[nodiscard]] virtual std::span<belay::traced_span> lease_spans(std::size_t count, const char* purpose) = 0;
  [[nodiscard]] virtual std::span<std::byte> lease_bytes(belay::function_ref<std::size_t(int)> bytes_of,
                                                         const char* purpose) = 0;
  /// Live leases, which `each_live` of a run tells; how many leases last as long as the run; open obligations.
  virtual void each_live(belay::function_ref<void(belay::tier, std::string_view, std::size_t)> see) const = 0;
  [[nodiscard]] virtual std::size_t lasting_leases() const = 0;
  [[nodiscard]] virtual std::size_t open_obligations() const = 0;

  /// Spans of the engine are those of `log` from now on; null: of none. Nothing where the stream has no spans.
  virtual void trace_into(belay::span_log* log) = 0;
  /// Returns when all that streams have queued is over.
  virtual void synchronize() = 0;

 protected:
  ~rank_run() = default;
};

/// `Run` outlives it.
template <class Run>
class rank_run_of final : public rank_run {
 public:
  explicit rank_run_of(Run& run) noexcept : run_(&run) {}

  [[nodiscard]] bool rehearsing() const override { return run_->rehearsing(); }
  void each_step(std::size_t count, std::size_t done, belay::function_ref<bool(std::size_t)> train) override {
    for (const std::size_t number : run_->steps(count, done))
      if (!train(number)) break;
  }
  [[nodiscard]] belay::end_of_step last_end() const override { return run_->engine().last_end(); }

  [[nodiscard]] std::span<double> lease_numbers(std::size_t count, const char* purpose) override {
    return run_->template lease<double>(belay::tier::host, count, purpose);
  }
  [[nodiscard]] std::span<char> lease_text(std::size_t count, const char* purpose) override {
    return run_->template lease<char>(belay::tier::host, count, purpose);
  }
  [[nodiscard]] std::span<belay::traced_span> lease_spans(std::size_t count, const char* purpose) override {
    return run_->template lease<belay::traced_span>(belay::tier::host, count, purpose);
  }
  [[nodiscard]] std::span<std::byte> lease_bytes(belay::function_ref<std::size_t(int)> bytes_of,
                                                 const char* purpose) override {
    return run_->template lease_shard<std::byte>(belay::tier::host, bytes_of, purpose);
  }
  void each_live(belay::function_ref<void(belay::tier, std::string_view, std::size_t)> see) const override {
    run_->each_live(see);
  }
  [[nodiscard]] std::size_t lasting_leases() const override { return run_->lasting().items().size(); }
  [[nodiscard]] std::size_t open_obligations() const override { return run_->engine().obligations().open_count(); }

  void trace_into([[maybe_unused]] belay::span_log* log) override {
    if constexpr (belay::traced_stream<typename Run::engine_type::stream_type>)
      run_->engine().trace_into(log, &run_->meters());
  }
  void synchronize() override { run_->engine().synchronize(); }

 private:
  Run* run_;
};

}  // namespace train_moe
