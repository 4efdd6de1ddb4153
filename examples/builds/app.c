/* A program whose memory is planned when it is built: model.h is written by stowplan. */
#include <inttypes.h>
#include <stdio.h>

#include "model.h"

static _Alignas(MODEL_ARENA_ALIGNMENT) unsigned char arena[MODEL_ARENA_BYTES];

int main(void) {
    float *image = (float *)(arena + MODEL_OFFSET_image);
    image[0] = 1.0f;
    printf("%" PRIu64 " bytes for %d buffers\n", (uint64_t)sizeof arena, MODEL_COUNT);
    return 0;
}
