// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Losses of a micro-batch: the sum over rows is noted, its gradient written. On the host a loss is work that runs once,
// in the order of a stream; on a device a team does each row, and another adds their losses. Rows are added in the
// sixteen lanes of a sum either way, so that it has the same bits everywhere.
//
//   compute.run(belay::kernel::noted_squared_error<float>{output, target, gradient, count, 0, found});
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/rows.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// The loss of `rows()` rows: `row_loss(team, row)` writes the row's gradient, `note(team, sum)` is called once.
template <class L>
concept row_losses = requires(const L& loss, std::size_t row, double sum) {
  { loss.rows() } -> std::same_as<std::size_t>;
  { loss.row_loss(solo{}, row) } -> std::same_as<double>;
  loss.note(solo{}, sum);
};

/// All of a loss on one thread.
template <class L>
BELAY_HD void note_loss(const L& loss) {
  double lane[sum_lanes] = {};
  for (std::size_t row = 0; row < loss.rows(); ++row) lane[row % sum_lanes] += loss.row_loss(solo{}, row);
  loss.note(solo{}, folded_lanes(lane));
}

/// losses[i] = the loss of row first + i, by a team.
template <row_losses L>
struct losses_of_rows {
  /// The loss, where those of its rows are written, and the first row.
  L loss;
  double* losses;
  std::size_t first;

  /// How long a row is, where the loss says so.
  [[nodiscard]] constexpr std::size_t columns() const noexcept requires sized_rows<L> { return loss.columns(); }
  /// Row first + i.
  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t i) const noexcept {
    const double one = loss.row_loss(team, first + i);
    if (team.lane == 0) losses[i] = one;
  }
};

/// Adds the losses of rows [first, first + count) to the lanes of their sum; notes it after the last row. A kernel of
/// one index; `first` is a multiple of `sum_lanes`.
template <row_losses L>
struct summed_losses {
  /// The loss, the lanes, the losses of `count` rows, and the first of these.
  L loss;
  double* lanes;
  const double* losses;
  std::size_t first;
  std::size_t count;

  /// All of these rows.
  template <team Team>
  BELAY_HD void operator()(const Team& team, std::size_t) const noexcept {
    for (std::size_t l = team.lane; l < sum_lanes; l += Team::lanes) {
      double sum = first == 0 ? 0 : lanes[l];
      for (std::size_t i = l; i < count; i += sum_lanes) sum += losses[i];
      lanes[l] = sum;
    }
    team.synchronize();
    if (first + count < loss.rows()) return;
    double lane[sum_lanes];
    for (std::size_t l = 0; l < sum_lanes; ++l) lane[l] = lanes[l];
    loss.note(team, folded_lanes(lane));
  }
};

/// A loss whose sum is also written to `*sum`, for those who want that of each micro-batch.
template <row_losses L>
struct kept_loss {
  /// The loss, and where its sum goes.
  L loss;
  double* sum;

  /// How long a row is, where the loss says so.
  [[nodiscard]] constexpr std::size_t columns() const noexcept requires sized_rows<L> { return loss.columns(); }

  /// The number of rows; `row_loss` does one of them by a team, and `note` takes the sum of all. A call without
  /// arguments does all of the loss on one thread.
  [[nodiscard]] BELAY_HD std::size_t rows() const noexcept { return loss.rows(); }
  template <team Team>
  [[nodiscard]] BELAY_HD double row_loss(const Team& team, std::size_t row) const noexcept {
    return loss.row_loss(team, row);
  }
  template <team Team>
  BELAY_HD void note(const Team& team, double total) const noexcept {
    if (team.lane == 0) *sum = total;
    loss.note(team, total);
  }
  BELAY_HD void operator()() const noexcept { note_loss(*this); }
};

/// The square of output - target, in double.
template <stored_real T>
struct squared_difference_of {
  /// Output and targets.
  const T* output;
  const compute_type_t<T>* target;
  /// Of element i.
  BELAY_HD constexpr double operator()(std::size_t i) const noexcept {
    const auto difference = static_cast<double>(widened(output[i]) - target[i]);
    return difference * difference;
  }

  /// Terms that `pack(i)` makes at once, from i on; `packs()` says whether both arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(output, target); }
  [[nodiscard]] BELAY_HD auto pack(std::size_t i) const noexcept {
    const auto of_output = load_pack<indices_of_pack>(output, i);
    const auto of_target = load_pack<indices_of_pack>(target, i);
    return terms_of<double, indices_of_pack>(squared_difference_of{of_output.of, of_target.of});
  }
};
/// gradient[i] = 2 (output[i] - target[i]); it may be `output`.
template <stored_real T>
struct doubled_difference {
  /// Output, targets, and where it is written.
  const T* output;
  const compute_type_t<T>* target;
  T* gradient;
  /// Element i.
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    gradient[i] = static_cast<T>(2 * (widened(output[i]) - target[i]));
  }

  /// Indices that `pack(i)` does at once, from i on; `packs()` says whether all arrays are aligned for that.
  static constexpr std::size_t indices_of_pack = pack_size<T>;
  [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(output, target, gradient); }
  BELAY_HD void pack(std::size_t i) const noexcept {
    const auto of_output = load_pack<indices_of_pack>(output, i);
    const auto of_target = load_pack<indices_of_pack>(target, i);
    pack_of<T, indices_of_pack> to;
    run_pack<indices_of_pack>(doubled_difference{of_output.of, of_target.of, to.of});
    store_pack(to, gradient, i);
  }
};

/// Notes the sum of (output - target)^2 over `samples`, and writes 2 (output - target) unless `gradient` is null. A row
/// is a chunk of elements, which are summed in lanes.
template <stored_real T>
struct noted_squared_error {
  /// Output, targets, the gradient to write, elements, samples of the batch, and where the loss is added.
  const T* output;
  const compute_type_t<T>* target;
  T* gradient;
  std::size_t count;
  std::size_t samples;
  findings_note found;

  /// The number of rows; `row_loss` does one of them by a team, and `note` takes the sum of all. A call without
  /// arguments does all of the loss on one thread.
  [[nodiscard]] BELAY_HD std::size_t rows() const noexcept { return chunk_count(count); }
  template <team Team>
  [[nodiscard]] BELAY_HD double row_loss(const Team& team, std::size_t row) const noexcept {
    const std::size_t first = row * sum_chunk;
    const std::size_t size = count - first < sum_chunk ? count - first : sum_chunk;
    const double sum = sum_in_lanes<double>(team, squared_difference_of<T>{output + first, target + first}, size);
    if (gradient != nullptr)
      for_each_pack(team, size, doubled_difference<T>{output + first, target + first, gradient + first});
    return sum;
  }
  template <team Team>
  BELAY_HD void note(const Team& team, double sum) const noexcept {
    if (team.lane == 0) found.add_loss(sum, samples);
  }
  BELAY_HD void operator()() const noexcept { note_loss(*this); }
};

/// Notes the sum of the losses of `each` row, and over how many targets where it writes no gradient.
template <stored_real T>
struct noted_cross_entropy {
  /// The loss of each row, and how many there are.
  cross_entropy_rows<T> each;
  std::size_t row_count;

  /// How long a row is.
  [[nodiscard]] constexpr std::size_t columns() const noexcept { return each.vocabulary; }

  /// The number of rows; `row_loss` does one of them by a team, and `note` takes the sum of all. A call without
  /// arguments does all of the loss on one thread.
  [[nodiscard]] BELAY_HD std::size_t rows() const noexcept { return row_count; }
  template <team Team>
  [[nodiscard]] BELAY_HD double row_loss(const Team& team, std::size_t row) const noexcept {
    return each.row_loss(team, row);
  }
  template <team Team>
  BELAY_HD void note(const Team& team, double sum) const noexcept {
    std::uint64_t targets = 0;
    for (std::size_t row = team.lane; each.gradient == nullptr && row < row_count; row += Team::lanes)
      targets += each.targets[row] != ignored_target ? 1U : 0U;
    for (unsigned width = Team::lanes / 2; width > 0; width /= 2)
      targets += team.from((team.lane + width) % Team::lanes, targets);
    if (team.lane == 0) each.found.add_loss(sum, targets);
  }
  BELAY_HD void operator()() const noexcept { note_loss(*this); }
};

static_assert(row_losses<noted_squared_error<float>> && row_losses<noted_cross_entropy<float>>);

}  // namespace belay::inline BELAY_ABI::kernel
