// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The example trainer over ranks that have a card each, by the real runtime and NCCL: two have the losses of one but
// for the order of sums, as threads and as processes. Without two cards it is compiled and linked, and what fails is
// one clear backend_error.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/nccl.cuh"
#include "support/card.hpp"
#include "unit/train_moe/support/small_training.hpp"

namespace {

using namespace small_training;

double apart(const std::vector<double>& expected, const std::vector<double>& got) {
  double worst = expected.size() == got.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < expected.size() && i < got.size(); ++i)
    worst = std::fmax(worst, std::isfinite(got[i]) ? std::abs(expected[i] - got[i]) : 1e9);
  return worst;
}

record over_nccl(const belay::axes& mesh, belay::zero_stage zero) {
  belay::cuda::runtime_api api;
  const belay::nccl::runtime_nccl nccl;
  const belay::host::world control(static_cast<int>(mesh.ranks()));
  return trained<float>(small_run(mesh, zero),
                        [&](const auto& body) { belay::launch(belay::nccl::world(api, nccl, control), body); });
}

bool has_losses_of_one(const record& one, const belay::axes& mesh, belay::zero_stage zero) {
  const record got = over_nccl(mesh, zero);
  const double losses = apart(one.losses, got.losses), norms = apart(one.norms, got.norms);
  std::printf("%s, zero %d: losses differ by %g, norms by %g\n", mesh.text().c_str(), static_cast<int>(zero), losses,
              norms);
  return losses < 1e-2 && norms < 1e-2;  // of numbers around 5; sums are added in another order
}

// The same of ranks that are processes: each takes the card of its number. They tell through a file. Of this process no
// call of CUDA has been made, for who has made one cannot be copied. Empty: there are no two cards.
std::vector<double> losses_of_processes() {
  std::FILE* const told = std::tmpfile();
  if (told == nullptr) throw belay::input_error("no temporary file can be made", belay::where::current());
  bool ran = false;
  try {
    belay::cuda::runtime_api api;
    const belay::nccl::runtime_nccl nccl;
    static_cast<void>(trained<float>(
        small_run({.data = 2}, belay::zero_stage::parameters),
        [&](const auto& body) { belay::launch(belay::nccl::world(api, nccl, belay::host::processes(2)), body); },
        nullptr,
        [told](const record& end) {
          std::fwrite(end.losses.data(), sizeof(double), end.losses.size(), told);
          std::fflush(told);
        }));
    ran = true;
  } catch (const belay::error& none) {
    std::printf("processes: %s\n", none.what());
  }
  std::vector<double> losses;
  double next = 0;
  for (std::rewind(told); ran && std::fread(&next, sizeof next, 1, told) == 1;) losses.push_back(next);
  std::fclose(told);
  return losses;
}

int device_count() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

}  // namespace

int main() {
  int devices = 0;
  try {
    using belay::zero_stage;
    const std::vector<double> processes = losses_of_processes();
    devices = device_count();
    const record one = over_nccl({}, zero_stage::none);
    if (devices < 2) return 0;
    const double differ = apart(one.losses, processes);
    std::printf("processes: losses differ by %g\n", differ);
    return differ < 1e-2 && has_losses_of_one(one, {.pipeline = 2}, zero_stage::optimizer_state) &&
                   has_losses_of_one(one, {.data = 2}, zero_stage::parameters) &&
                   has_losses_of_one(one, {.expert = 2}, zero_stage::gradients)
               ? 0
               : 1;
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    return devices == 0 && problem.about().call == "count_devices" ? test::code_without_card() : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
  }
}
