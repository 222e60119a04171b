// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The whole model of the examples over a kit that launches on a device: what its layers hand to a kit is compiled for
// the device, unchanged. Where the device reads the host's memory, one step there gives the gradients of the host.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "belay/belay.hpp"
#include "model/cross_entropy.hpp"
#include "model/mixtral.hpp"
#include "support/warp.cuh"
#include "unit/model/support/exchange.hpp"

namespace device_test {

// Runs host work between kernels: queued ones are over before.
struct device_stream {
  static constexpr bool runs_nothing = false;

  template <class Work>
  void run(Work&& work) {
    synchronize();
    work();
  }
  [[nodiscard]] belay::stream_event record() {
    synchronize();
    return {};
  }
  void wait(const belay::stream_event& mark) const { mark.synchronize(); }
  void synchronize() { failed = failed || cudaDeviceSynchronize() != cudaSuccess; }

  bool failed = false;
};

template <class T>
BELAY_HD T element(const belay::operand<const T>& m, std::size_t i, std::size_t j) {
  return m.as == belay::reading::as_is ? m.row(i)[j] : m.row(j)[i];
}

template <class T>
struct product_element {
  belay::operand<T> c;
  belay::operand<const T> a;
  belay::operand<const T> b;
  T alpha;
  T beta;
  BELAY_HD void operator()(std::size_t index) const {
    T& to = c.row(index / c.columns)[index % c.columns];
    T sum = 0;
    for (std::size_t k = 0; k < a.width(); ++k)
      sum += element(a, index / c.columns, k) * element(b, k, index % c.columns);
    to = beta == T(0) ? alpha * sum : beta * to + alpha * sum;
  }
};

template <class T, class Index>
struct grouped_element {
  belay::operand<T> c;
  belay::operand<const T> a;
  belay::operand_stack<const T> b;
  belay::view<const Index, 1> ends;
  T alpha;
  T beta;
  BELAY_HD void operator()(std::size_t index) const {
    std::size_t e = 0;
    while (e < ends.size() && index / c.columns >= static_cast<std::size_t>(ends[e])) ++e;
    if (e < ends.size()) product_element<T>{c, a, b[e], alpha, beta}(index);
  }
};

template <class T, class Index>
struct stacked_element {
  belay::operand_stack<T> c;
  belay::operand<const T> a;
  belay::operand<const T> b;
  belay::view<const Index, 1> ends;
  T alpha;
  T beta;
  BELAY_HD void operator()(std::size_t index) const {
    const std::size_t size = c.rows * c.columns, e = index / size;
    const std::size_t first = e == 0 ? 0 : static_cast<std::size_t>(ends[e - 1]);
    const std::size_t count = static_cast<std::size_t>(ends[e]) - first;
    product_element<T>{c[e], transposed(a.row_range(first, count)), b.row_range(first, count), alpha,
                       beta}(index % size);
  }
};

class device_kit {
 public:
  using stream_type = device_stream;

  [[nodiscard]] stream_type& stream() noexcept { return stream_; }
  template <class F>
  void each(std::size_t count, const F& f) {
    stream_.failed = stream_.failed || test::launch(count, f) != cudaSuccess;
  }
  template <class G>
  void teams(std::size_t count, const G& g) {
    each(count, g);
  }
  template <class T>
  void product(belay::operand<T> c, belay::operand<const std::type_identity_t<T>> a,
               belay::operand<const std::type_identity_t<T>> b, std::type_identity_t<T> alpha,
               std::type_identity_t<T> beta) {
    each(c.rows * c.columns, product_element<T>{c, a, b, alpha, beta});
  }
  template <class T, class Index>
  void grouped(belay::operand<T> c, belay::operand<const std::type_identity_t<T>> a,
               belay::operand_stack<const std::type_identity_t<T>> b, belay::view<const Index, 1> ends,
               std::type_identity_t<T> alpha, std::type_identity_t<T> beta) {
    each(c.rows * c.columns, grouped_element<T, Index>{c, a, b, ends, alpha, beta});
  }
  template <class T, class Index>
  void grouped(belay::operand_stack<T> c, belay::operand<const std::type_identity_t<T>> a,
               belay::operand<const std::type_identity_t<T>> b, belay::view<const Index, 1> ends,
               std::type_identity_t<T> alpha, std::type_identity_t<T> beta) {
    each(c.count * c.rows * c.columns, stacked_element<T, Index>{c, a, b, ends, alpha, beta});
  }
  [[nodiscard]] static constexpr std::size_t workspace_bytes() noexcept { return 0; }

 private:
  stream_type stream_;
};

static_assert(belay::compute_kit<device_kit, float>);

}  // namespace device_test

namespace {

// The loss and all gradients of one step.
template <class Kit>
std::vector<float> one_step() {
  model::mixtral_config config;
  config.vocab = 19;
  config.hidden = 16;
  config.expert_width = 24;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.experts = 4;
  config.positions = 70;  // two blocks of queries
  using exchange = test::exchange<float>;
  exchange all_here(2 * config.positions * config.experts_per_token);
  model::mixtral<float, exchange> net(config, model::model_part::whole(config), {0, config.experts}, all_here);
  std::vector<std::vector<float>> values, gradients;
  net.for_each_parameter([&](auto& parameter) {
    values.emplace_back(parameter.local_size());
    gradients.emplace_back(parameter.local_size());
    parameter.bind(values.back().data(), gradients.back().data());
    parameter.initialise(3);
  });
  std::vector<std::int32_t> tokens(2 * config.positions), targets(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(i * i % config.vocab);
    targets[i] = i % 5 == 4 ? model::ignored : static_cast<std::int32_t>((i * i + 1) % config.vocab);
  }
  belay::tier_meter meter;
  belay::engine<belay::host_pages, Kit> engine{belay::host_pages{std::size_t{8} << 20}, meter};
  belay::step step{engine};
  const belay::view<const std::int32_t, 2> x{tokens.data(), {2, config.positions}};
  auto embedded = belay::forward(step, net.first(), x);
  auto first = belay::forward(step, net.layers()[0], embedded.out());
  auto second = belay::forward(step, net.layers()[1], first.out());
  auto logits = belay::forward(step, net.last(), second.out());
  belay::gradient<belay::engine<belay::host_pages, Kit>, float, 3> grad{engine, logits.out().shape()};
  std::vector<float> result(1);
  engine.compute().run([&] {
    result[0] =
        static_cast<float>(model::cross_entropy<float>(logits.out(), {targets.data(), x.shape()}, 1.0, grad.values()));
  });
  grad = std::move(logits).backward(grad);
  grad = std::move(second).backward(grad);
  grad = std::move(first).backward(grad);
  std::move(embedded).backward(grad);
  engine.compute().synchronize();
  static_cast<void>(std::move(step).commit());
  for (const auto& gradient : gradients) result.insert(result.end(), gradient.begin(), gradient.end());
  if constexpr (requires { engine.compute().failed; }) {
    if (engine.compute().failed) std::printf("a launch failed: %s\n", cudaGetErrorString(cudaGetLastError()));
  }
  return result;
}

bool device_reads_host_memory() {
  int devices = 0, reads = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 &&
         cudaDeviceGetAttribute(&reads, cudaDevAttrPageableMemoryAccess, 0) == cudaSuccess && reads != 0;
}

}  // namespace

int main() {
  const std::vector<float> on_host = one_step<belay::host_kit<>>();
  if (!(on_host[0] > 0)) {
    std::printf("the host's loss is %g\n", static_cast<double>(on_host[0]));
    return 1;
  }
  if (!device_reads_host_memory()) {
    std::printf("no device that reads the host's memory: compiled, linked, run on the host\n");
    return 0;
  }
  const std::vector<float> on_device = one_step<device_test::device_kit>();
  float worst = 0, largest = 0;
  for (std::size_t i = 1; i < on_host.size(); ++i) {
    worst = std::fmax(worst, std::abs(on_host[i] - on_device[i]));
    largest = std::fmax(largest, std::abs(on_host[i]));
  }
  std::printf("run on host and device: losses %.6f and %.6f, gradients up to %g differ by %g\n",
              static_cast<double>(on_host[0]), static_cast<double>(on_device[0]), static_cast<double>(largest),
              static_cast<double>(worst));
  return std::abs(on_host[0] - on_device[0]) <= 1e-4f * on_host[0] && worst <= 1e-3f * largest ? 0 : 1;
}
