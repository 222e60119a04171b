// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What every rank runs: its buffers, the contenders of each cell, the samples, the checks; rank 0 reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithm.hpp"
#include "collectives/buffers.hpp"
#include "collectives/handwritten_baseline.hpp"
#include "collectives/library_calls.hpp"
#include "collectives/machine.hpp"
#include "collectives/mpi_peer.hpp"
#include "collectives/options.hpp"
#include "collectives/probe.hpp"
#include "collectives/result.hpp"
#include "collectives/sampler.hpp"
#include "collectives/scoreboard.hpp"
#include "collectives/unchecked_baseline.hpp"

namespace bench {

template <class Group>
class measurement {
 public:
  measurement(const Group& group, const options& what)
      : group_(group),
        what_(what),
        buffers_(group, largest(what)),
        scoreboard_(buffers_.scoreboard_lines(), group.rank(), group.size(),
                    what.oversubscribed() ? variants::give_core_away : variants::keep_core),
        probe_(scoreboard_, std::getenv("BELAY_BENCH_SMOKE") != nullptr ? 0 : std::size_t{2} << 20) {
    if (what.buffers == "ordinary") {
      ordinary_.emplace(largest(what));
      ordinary_out_.emplace(largest(what));
    }
    in_ = ordinary_ ? ordinary_->data() : buffers_.in(group.rank());
    out_ = ordinary_ ? ordinary_out_->data() : buffers_.out(group.rank());
    if (what.has_peer("mpi")) mpi_ = make_mpi_peer(what, largest(what), group.rank());
    const bool fits_baseline = group.size() == 2 && what.type == "float" && what.redop == "sum" && !ordinary_;
    if (what.has_peer("twin") && fits_baseline) {
      const auto floats = [](std::byte* p) { return reinterpret_cast<float*>(p); };
      float* const ins[2] = {floats(buffers_.in(0)), floats(buffers_.in(1))};
      float* const outs[2] = {floats(buffers_.out(0)), floats(buffers_.out(1))};
      handwritten_baseline_.emplace(buffers_.baseline_lines(), group.rank(), ins, outs);
    }
    if constexpr (requires { buffers_.unchecked_baseline_memory(); }) {
      if (what.has_peer("bare") && what.type == "float" && what.redop == "sum") {
        unchecked_baseline_.emplace(buffers_.unchecked_baseline_memory(), group.rank(), group.size());
      }
    }
  }

  /// All cells of one operation, appended; `turn` is printed beside its name on a terminal. Collective.
  void measure(op which, const std::string& turn, std::vector<cell>& into) {
    call_ = make_library_call(group_, which, what_, in_, out_);
    if (!call_) {
      if (group_.rank() == 0)
        std::printf("# %s: %s is moved, never reduced; left out\n", name(which), what_.type.c_str());
      return;
    }
    std::vector<std::size_t> sizes =
        which == op::barrier ? std::vector<std::size_t>{0} : sweep(what_.min, what_.max, what_.factor);
    for (const std::size_t bytes : sizes) {
      const extent size = extent_of(which, bytes, element_bytes(what_.type), group_.size());
      if (which != op::barrier && size.count == 0) continue;
      if (group_.rank() == 0 && ::isatty(STDERR_FILENO) != 0) {
        std::fprintf(stderr, "\r%s %-20s %10s ", turn.c_str(), name(which), size_text(size.bytes).c_str());
      }
      into.push_back(measure_one(which, size));
    }
    if (group_.rank() == 0 && ::isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r%40s\r", "");
  }

 private:
  // A buffer of the largest call holds whole parts.
  [[nodiscard]] static std::size_t largest(const options& what) { return (what.max + 4095) / 4096 * 4096; }

  [[nodiscard]] cell measure_one(op which, extent size) {
    cell out;
    out.what = which;
    out.size = size;
    call_->prepare(size);
    for (const bool in_place : {false, true}) out.algorithm[in_place ? 1 : 0] = settle(which, size, in_place);
    if (mpi_) mpi_->prepare(which, size);
    const std::unique_ptr<library_call> unchecked_call =
        unchecked_baseline_ && unchecked_baseline::can(which, size.bytes) ? make_unchecked_call(which) : nullptr;
    if (unchecked_call) unchecked_call->prepare(size);
    std::vector<contender> all;
    const auto add = [&](contender_kind kind, std::string name, bool in_place, std::function<void()> freshen,
                         std::function<void(int)> run) {
      all.push_back({kind, std::move(name), in_place, std::move(freshen), std::move(run)});
    };
    for (const bool in_place : {false, true}) {
      if (!call_->offers(in_place)) continue;
      const auto fresh = [this, in_place] { call_->freshen(in_place); };
      add(contender_kind::library_call, "belay", in_place, fresh,
          [this, in_place](int calls) { call_->run(in_place, calls); });
      if (handwritten_baseline_) {
        for (const handwritten_baseline::setting& how : handwritten_baseline::settings(which, size.bytes, in_place)) {
          add(contender_kind::handwritten_baseline, how.name, in_place, fresh,
              [this, which, size, in_place, how](int calls) {
                for (int i = 0; i < calls; ++i) handwritten_baseline_->call(which, size.count, in_place, how);
              });
        }
      }
      if (unchecked_call) {
        add(contender_kind::unchecked_baseline, "bare", in_place, fresh,
            [&, in_place](int calls) { unchecked_call->run(in_place, calls); });
      }
      if (mpi_ && mpi_->can(which)) {
        add(
            contender_kind::mpi, "mpi", in_place, [this, in_place] { mpi_->freshen(in_place); },
            [this, in_place](int calls) {
              for (int i = 0; i < calls; ++i) mpi_->call(in_place);
            });
      }
    }
    if (what_.limits && size.bytes > 0) {
      std::byte* const to = out_;
      std::byte* const from = in_;
      for (const belay::memory_access how : belay::copy_accesses) {
        const auto fresh = [this, from, size] {
          pattern_.write(reinterpret_cast<std::int32_t*>(from), size.bytes / 4, group_.rank(), ++round_);
        };
        add(contender_kind::copy, belay::name(how), false, fresh, [to, from, size, how](int calls) {
          for (int i = 0; i < calls; ++i) belay::copy_bytes(to, from, size.bytes, how);
        });
      }
    }
    take_samples(scoreboard_, probe_, all, what_.warmup, what_.samples(size.bytes), out);
    if (what_.check) check(which, size, out);
    return out;
  }

  // The library tunes an operation in its first calls; what is timed comes after them. Returns the variant in use
  // then.
  [[nodiscard]] std::string settle(op which, extent size, bool in_place) {
    std::string usual = algorithm_of(what_, which, size, in_place);
    if (which == op::barrier || !call_->offers(in_place)) return usual;
    const bool tried = size.bytes >= (ordinary_ ? belay::host::least_tried_unmapped : belay::host::least_tried_mapped);
    for (int i = 0; tried && i < belay::host::online_tuner::most_calls; ++i) {
      call_->freshen(in_place);
      scoreboard_.align();
      call_->run(in_place, 1);
    }
    if constexpr (requires { group_.last_variant(); }) {
      const bool told = tried && which != op::send_recv;  // the variant is known
      const bool free = forced_algorithm(what_) == belay::host::algorithm::automatic;
      if (told && free) return text_of(group_.last_variant(), usual);
    }
    return usual;
  }

  [[nodiscard]] std::unique_ptr<library_call> make_unchecked_call(op which) const {
    float* const in = reinterpret_cast<float*>(in_);
    float* const out = reinterpret_cast<float*>(out_);
    if (which == op::barrier)
      return std::make_unique<barrier_call<unchecked_baseline, float>>(*unchecked_baseline_, which, in, out,
                                                                       what_.root);
    return std::make_unique<all_reducer<unchecked_baseline, float, belay::sum_t>>(*unchecked_baseline_, which, in, out,
                                                                                  what_.root);
  }

  void check(op which, extent size, cell& into) {
    for (const bool in_place : {false, true}) {
      if (!call_->offers(in_place)) continue;
      const auto wrong_after = [&](auto call) {
        call_->spoil();
        call_->freshen(in_place);
        scoreboard_.align();
        call();
        scoreboard_.align();
        const double wrong = scoreboard_.sum_of(static_cast<double>(call_->wrong(in_place)));
        scoreboard_.align();  // no rank writes anew what another still compares
        return static_cast<std::size_t>(wrong);
      };
      into.wrong[in_place ? 1 : 0] = wrong_after([&] { call_->run(in_place, 1); });
      if (!handwritten_baseline_) continue;
      for (const handwritten_baseline::setting& how : handwritten_baseline::settings(which, size.bytes, in_place)) {
        // A baseline that is faster and wrong is no baseline.
        if (wrong_after([&] { handwritten_baseline_->call(which, size.count, in_place, how); }) > 0) {
          throw std::runtime_error("the hand-written baseline's " + std::string(name(which)) + " (" + how.name +
                                   ") of " + std::to_string(size.bytes) + " bytes is wrong");
        }
      }
    }
  }

  Group group_;
  const options& what_;
  buffers<Group> buffers_;
  scoreboard scoreboard_;
  state_probe probe_;
  std::optional<private_pages> ordinary_, ordinary_out_;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  std::unique_ptr<library_call> call_;
  std::optional<handwritten_baseline> handwritten_baseline_;
  std::optional<unchecked_baseline> unchecked_baseline_;
  std::unique_ptr<mpi_peer> mpi_;
  pattern<std::int32_t> pattern_;
  unsigned round_ = 0;
};

/// Rank 0: the table, and the JSON file where one is wanted.
inline void report_cells(const std::vector<cell>& cells, const options& what) {
  const std::vector<row> rows = rows_of(cells);
  const run_words words{what.type, what.redop, what.as, what.buffers, what.ranks, what.root};
  print_table(rows, words, stdout);
  for (const std::string& lost : without_row(cells, rows)) {
    std::fprintf(stderr, "# %s: no row, something else had a rank's core in every sample\n", lost.c_str());
  }
  const bool mpi = what.has_peer("mpi") && mpi_available;
  const nlohmann::ordered_json machine = machine_json(rows, mpi ? mpi_version() : std::string());
  for (const auto& [state, of] : machine["states"].items()) {
    if (of["rtt_us"].is_null()) continue;  // measured between two ranks with a core each
    std::printf("# state %s: round trip %.0f ns", state.c_str(), 1e3 * of["rtt_us"].get<double>());
    if (of["copy_scaling"].is_null())
      std::printf("\n");
    else
      std::printf(", two cores copy %.2f times what one does\n", of["copy_scaling"].get<double>());
  }
  if (!what.json.empty()) {
    nlohmann::ordered_json out{{"machine", machine}, {"results", nlohmann::ordered_json::array()}};
    for (const row& one : rows) out["results"].push_back(json_of(one, words));
    std::ofstream file(what.json);
    file << out.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("--json " + what.json + ": cannot be written");
  }
  std::fflush(stdout);
}

/// Returns the number of wrong elements of all cells and ranks. Collective.
template <class Group>
std::size_t measure_all(const Group& group, const options& what) {
  std::vector<cell> cells;
  measurement<Group> all(group, what);
  for (std::size_t i = 0; i < what.ops.size(); ++i) {
    all.measure(what.ops[i], std::to_string(i + 1) + "/" + std::to_string(what.ops.size()), cells);
  }
  if (group.rank() == 0) report_cells(cells, what);
  std::size_t wrong = 0;
  for (const cell& each : cells) wrong += each.wrong[0].value_or(0) + each.wrong[1].value_or(0);
  return wrong;
}

}  // namespace bench
