// expect: this type has no safetensors dtype
#include "belay/backend/host.hpp"
#include "belay/train/parameter_files.hpp"

struct not_a_number {};

void write(const belay::host::group& ranks, const belay::safetensors::file_division& files,
           std::span<const float> values, std::span<const not_a_number> others) {
  belay::safetensors::writer out(belay::safetensors::written_by(ranks), "model", files);
  out.write<float>("weight", 0, values);
  static_cast<void>(others);
#ifdef BELAY_BROKEN
  out.write<not_a_number>("weight", 0, others);
#endif
}
